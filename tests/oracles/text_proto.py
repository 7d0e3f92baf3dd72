"""Protobuf's text form, read without protobuf: as much of it as a Triton configuration needs.

A field that comes twice is a list, and so is one in brackets. Numbers, booleans, enumerations (as text) and strings.
"""

import re

_TOKEN = re.compile(r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[\w.+-]+)|(?P<sign>[{}\[\]:,]))')


def parse(text):
    """Give a message as a dictionary."""
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match, f"not the text form of protobuf: {text[at : at + 40]!r}"
        tokens.append(match)
        at = match.end()
    message, rest = _message(tokens, 0)
    assert rest == len(tokens), "a brace too many"
    return message


def _message(tokens, i):
    message = {}
    while i < len(tokens) and tokens[i]["sign"] != "}":
        name = tokens[i]["word"]
        assert name, f"a field's name was expected, not {tokens[i][0]!r}"
        i += 1
        if tokens[i]["sign"] == ":":
            value, i = _value(tokens, i + 1)
        else:
            assert tokens[i]["sign"] == "{", f"{name}: ':' or '{{' was expected"
            value, i = _message(tokens, i + 1)
            assert tokens[i]["sign"] == "}"
            i += 1
        if name in message:
            before = message[name]
            message[name] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            message[name] = value
    return message, i


def _value(tokens, i):
    if tokens[i]["sign"] == "[":
        values = []
        i += 1
        while tokens[i]["sign"] != "]":
            value, i = _value(tokens, i)
            values.append(value)
            i += tokens[i]["sign"] == ","
        return values, i + 1
    if tokens[i]["text"]:
        return tokens[i]["text"][1:-1], i + 1
    word = tokens[i]["word"]
    if word in ("true", "false"):
        return word == "true", i + 1
    return (int(word) if re.fullmatch(r"[+-]?\d+", word) else word), i + 1
