"""Values held against annotations."""

from collections.abc import Sequence
from inspect import Parameter
from typing import Any, Literal, Optional

import pytest

from pipetrain.config.annotations import problem

EMPTY = Parameter.empty


def told(annotation, value, default=EMPTY):
    """The problem with a value for a parameter."""
    return problem(Parameter("name", Parameter.KEYWORD_ONLY, annotation=annotation, default=default), value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bool, True),
        (int, 3),
        (int, None),
        (int, {"_target_": "mylib.width"}),
        (float, 3),
        (float, 0.5),
        (Literal["words", "bpe"], "bpe"),
        (int | None, None),
        (int | bool, True),
        (Optional[float], 2),  # noqa: UP045  (as libraries write it)
        (int | Sequence[int], "32"),
        (str, 3),
        (Any, "maybe"),
        ("bool", "maybe"),
        (EMPTY, "maybe"),
    ],
)
def test_values_that_fit_or_of_which_nobody_can_tell_pass(annotation, value):
    assert told(annotation, value) is None


def test_annotation_that_its_own_default_contradicts_says_nothing():
    assert told(int, "same", default="valid") is None
    assert told(bool, 1, default=0) is None


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (bool, "maybe", "true or false is needed"),
        (bool, "yes", "true or false is needed; did you mean true?"),
        (bool, 0, "true or false is needed; did you mean false?"),
        (int, 3.0, "a whole number is needed; did you mean 3?"),
        (int, True, "a whole number is needed"),
        (int, [3], "a whole number is needed"),
        (float, "fast", "a number is needed"),
        (int | None, "many", "a whole number is needed"),
        (bool | float, "many", "true or false or a number is needed"),
        (Literal["words", "characters"], "word", "one of words, characters is needed; did you mean words?"),
    ],
)
def test_value_that_does_not_fit_is_told_with_what_would_and_the_nearest(annotation, value, message):
    assert told(annotation, value) == message


def test_default_that_fits_leaves_the_annotation_standing():
    assert told(bool, "maybe", default=False) == "true or false is needed"
    assert told(int, 2.5, default=None) == "a whole number is needed; did you mean 2?"
