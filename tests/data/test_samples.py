"""Samples that are dicts."""

import copy
import pickle

import pytest
import torch
from support.named_samples import Dicts

from pipetrain.data.fetch import Fetch
from pipetrain.data.samples import NamedSamples, naming_errors
from pipetrain.engine.errors import ConfigError, DataError


class Pairs(Dicts):
    def __getitem__(self, index):
        return torch.zeros(3), index


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


@pytest.mark.parametrize(
    ("split", "target", "inputs", "message"),
    [
        (Dicts(), "label", None, "target_key=label: sample 1 has no label; it has pixels, mask, labels"),
        (Dicts(), "labels", "image", "input_key=image: sample 1 has no image; it has pixels, mask, labels"),
        (Dicts(), ["pixels", "mask", "labels"], None, "target_key=.*: leaves no input in sample 1"),
        (
            Pairs(),
            "labels",
            None,
            "target_key=labels: works only with samples that are dicts, and sample 1 is a tuple; leave it",
        ),
    ],
)
def test_names_that_a_sample_does_not_have_are_refused(split, target, inputs, message):
    with pytest.raises(ConfigError, match=rf"^dataset\.{message}"):
        NamedSamples(split, target, inputs)[1]


def test_dict_without_named_target_is_refused_at_first_read():
    message = r"sample \d must be .* not a dict of pixels, mask, labels; dataset.target_key=labels makes labels"
    with pytest.raises(ConfigError, match=message):
        Fetch(Dicts(), 0, inputs=True, targets=True)(0, [0])


def test_what_code_of_a_data_set_raises_is_an_error_of_the_data_unless_python_ends_a_context():
    for raised in (KeyError("x"), SystemExit(3)):
        with pytest.raises(DataError, match=r"^dataset: sample 0: "), naming_errors("sample 0"):
            raise raised
    with pytest.raises(GeneratorExit), naming_errors("sample 0"):
        raise GeneratorExit
