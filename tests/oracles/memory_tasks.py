"""Answers of the memory tasks, read off the rows of one episode with a pencil; None where nothing is asked."""

import math


def last_shown(rows, *, n_symbols, marker):
    """Symbol of the last row that is a cue: any that is not empty, or any with the marker."""
    answers, held = [], None
    for row in rows:
        if row[marker] if marker is not None else any(row):
            held = list(row[:n_symbols]).index(1)
        answers.append(held)
    return answers


def sum_of_marked(rows):
    """Sum of the two marked numbers, in deviations of such sums, from the second on."""
    found, answers = [], []
    for number, marked in rows:
        if marked:
            found.append(number)
        answers.append((sum(found) - 1) / math.sqrt(1 / 6) if len(found) == 2 else None)
    return answers


def value_of_key(rows, *, n_symbols):
    """At a key that was seen before: the value that followed it then."""
    known, answers, key = {}, [], None
    for row in rows:
        token = list(row).index(1)
        if token < n_symbols:
            key = token
            answers.append(known.get(key))
        else:
            known[key] = token - n_symbols
            answers.append(None)
    return answers


def copied(rows, *, n_symbols):
    """The symbols in their order, one per row that asks."""
    shown, answers = [], []
    for row in rows:
        if any(row[:n_symbols]):
            shown.append(list(row[:n_symbols]).index(1))
        answers.append(shown[sum(answer is not None for answer in answers)] if row[n_symbols] else None)
    return answers


def parity(rows, *, delay, n_bits):
    """Parity of the bits ``delay`` to ``delay + n_bits − 1`` rows back."""
    bits = [int(row[0] > 0) for row in rows]
    first = delay + n_bits - 1
    return [sum(bits[t - first : t - delay + 1]) % 2 if t >= first else None for t in range(len(bits))]


def sine(rows):
    """Sine of unit variance from the last cue on, of a period between 32 and 8 rows."""
    answers, rate, age = [], None, 0
    for cue, part in rows:
        if cue:
            rate, age = 1 / 32 + (part + 1) / 2 * (1 / 8 - 1 / 32), 0
        answers.append(None if rate is None else math.sqrt(2) * math.sin(2 * math.pi * rate * age))
        age += 1
    return answers


def top_of_stack(rows, *, kinds):
    """Kind of the innermost open bracket, from 1 on, or 0; raises where a bracket closes what is not open."""
    stack, answers = [], []
    for row in rows:
        token = list(row).index(1)
        if token < kinds:
            stack.append(token)
        elif stack.pop() != token - kinds:
            raise AssertionError("a bracket closes another kind")
        answers.append(stack[-1] + 1 if stack else 0)
    assert not stack, "a bracket stays open"
    return answers
