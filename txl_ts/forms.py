"""The form that plain JSON from a file must have.

A form is written as it looks: ``int``, ``float``, ``bool`` or ``str`` for a value of that type (whole numbers do for
``float``), ``object`` for any of them or None, ``(form, None)`` where None will do too, ``[form]`` for a list,
``[form, form]`` for one of exactly these, ``{str: form}`` for an object with free keys, an object of names for one with
exactly these, and ``...`` for what somebody else will judge.
"""

from __future__ import annotations

import math
from typing import Any


def check_form(value: Any, form: Any, *, where: str = "it") -> None:
    """Compare a value with a form.

    Raises
    ------
    ValueError
        If it differs; the message names the place.

    Examples
    --------
    >>> check_form({"n": 3, "tags": {"a": [1.5]}}, {"n": int, "tags": {str: [float]}})
    """
    if form is ...:
        return
    if isinstance(form, tuple):
        if value is not None:
            check_form(value, form[0], where=where)
    elif isinstance(form, list):
        if type(value) is not list:
            _fail(value, "a list", where)
        if len(form) > 1 and len(value) != len(form):
            _fail(value, f"a list of {len(form)}", where)
        for i, one in enumerate(value):
            check_form(one, form[i if len(form) > 1 else 0], where=f"{where}[{i}]")
    elif isinstance(form, dict):
        if type(value) is not dict:
            _fail(value, "an object", where)
        if str not in form and value.keys() != form.keys():
            _fail(sorted(value), f"the keys {sorted(form)}", where)
        for key, one in value.items():
            check_form(one, form[str] if str in form else form[key], where=f"{where}.{key:.40}")
    elif not _is_plain(value, form):
        _fail(value, "a plain value" if form is object else f"a {form.__name__}", where)


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is object:
        return value is None or any(_is_plain(value, one) for one in (float, bool, str))
    if kind is float:
        return type(value) is int or (type(value) is float and math.isfinite(value))
    return type(value) is kind and (kind is not int or -(2**63) < value < 2**63)


def _fail(value: Any, wanted: str, where: str) -> None:
    raise ValueError(f"{where} is {value!r:.60}, expected {wanted}")
