"""Samples that are dicts."""

import copy
import pickle

import pytest
from support.named_samples import Dicts

from pipetrain.data.fetch import Fetch
from pipetrain.data.samples import NamedSamples, naming_errors
from pipetrain.engine.errors import DataError


def test_target_is_taken_out_and_the_rest_is_the_input():
    split = NamedSamples(Dicts(), "labels")
    inputs, label = split[1]
    assert (list(inputs), label) == (["pixels", "mask"], 1)
    assert (len(split), split.classes, hasattr(split, "collate")) == (2, 2, False)
    assert Fetch(split, 0, inputs=True, targets=True).names() == ("pixels", "mask")
    for other in (pickle.loads(pickle.dumps(split)), copy.deepcopy(split)):
        assert other[1][1] == 1


def test_inputs_and_targets_can_be_named():
    pixels, labels = NamedSamples(Dicts(), ["labels", "mask"], "pixels")[1]
    assert (pixels.tolist(), list(labels)) == ([1.0, 1.0, 1.0], ["labels", "mask"])
    inputs, _ = NamedSamples(Dicts(), "labels", ["pixels"])[0]
    assert list(inputs) == ["pixels"]
    pixels, _ = NamedSamples(Dicts(), ["labels", "mask"])[1]
    assert pixels.tolist() == [1.0, 1.0, 1.0]


def test_what_code_of_a_data_set_raises_is_an_error_of_the_data_unless_python_ends_a_context():
    for raised in (KeyError("x"), SystemExit(3)):
        with pytest.raises(DataError, match=r"^dataset: sample 0: "), naming_errors("sample 0"):
            raise raised
    with pytest.raises(GeneratorExit), naming_errors("sample 0"):
        raise GeneratorExit
