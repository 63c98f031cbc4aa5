"""JSON without numbers that are not finite."""

import json
import math

import pytest

from pipetrain.data.files.strict_json import dumps, number


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_number_is_null_and_read_back_as_nan(value):
    text = dumps({"loss": value, "stages": [{"share": value}, (1.5, value)], "steps": 3})
    assert json.loads(text) == {"loss": None, "stages": [{"share": None}, [1.5, None]], "steps": 3}
    assert math.isnan(number(json.loads(text)["loss"]))


def test_other_content_is_as_json_has_it():
    content = {"a": 1, "b": [0.1, None, "NaN", True]}
    assert dumps(content, indent=2) == json.dumps(content, indent=2)
    assert number(0.1) == 0.1
