"""Plain JSON is compared with the form that it must have, and the message names the place."""

import math
import re

import pytest

from txl_ts.forms import check_form

FORM = {"n": int, "at": (int, None), "pairs": [[int, str]], "tags": {str: [float]}, "any": object, "later": ...}
GOOD = {"n": 3, "at": None, "pairs": [[1, "a"]], "tags": {"x": [1, 2.5]}, "any": None, "later": object()}


def test_what_has_the_form_passes():
    check_form(GOOD, FORM)
    check_form(GOOD | {"at": -5, "any": "text", "tags": {}, "pairs": []}, FORM)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n": True}, "it.n is True, expected a int"),
        ({"n": 2**63}, "it.n is 9223372036854775808, expected a int"),
        ({"n": None}, "it.n is None, expected a int"),
        ({"at": "x"}, "it.at is 'x', expected a int"),
        ({"pairs": [[1, "a"], [1]]}, "it.pairs[1] is [1], expected a list of 2"),
        ({"pairs": {}}, "it.pairs is {}, expected a list"),
        ({"tags": {"x": [math.nan]}}, "it.tags.x[0] is nan, expected a float"),
        ({"tags": []}, "it.tags is [], expected an object"),
        ({"any": [1]}, "it.any is [1], expected a plain value"),
        ({"more": 1}, "expected the keys ['any', 'at', 'later', 'n', 'pairs', 'tags']"),
    ],
)
def test_what_has_not_is_a_value_error_that_names_the_place(change, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        check_form(GOOD | change, FORM)
