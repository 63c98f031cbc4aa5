"""Samples, minibatches and splits that cannot be used are refused by name."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.named_samples import Dicts
from support.refusals import assert_refused

from pipetrain.data.fetch import Fetch
from pipetrain.data.loader import Loader
from pipetrain.data.ranges import LabelRange, TokenRange
from pipetrain.data.samples import NamedSamples
from pipetrain.data.splits import data_object

TWO, THREE = torch.zeros(2), torch.zeros(3)


class Listed(list):
    """A data set of the samples listed."""


SAMPLES = [
    ([(torch.zeros(1, 2), 0), (torch.zeros(1, 3), 0)], r"inputs of samples 0 and 1 .*\(1, 2\) and float32 \(1, 3\)"),
    ([(TWO, 0), (TWO, TWO)], "targets of samples 0 and 1 .*int and float32"),
    ([((TWO,), 0), ((TWO, TWO), 0)], "inputs of samples 0 and 1"),
    ([TWO] * 2, "sample 0 .*, not a Tensor"),
    ([(TWO,) * 2, (TWO,) * 3], "sample 1 .*, not a tuple of 3"),
    ([("text", 0)] * 2, "inputs must be tensors, arrays or numbers, .*, not str"),
    ([(TWO, 0), (TWO.double(), 0)], r"0 and 1 .*: float32 \(2,\) and float64 \(2,\)$"),
    ([(0, 0.5), (0, 1)], "targets of samples 0 and 1 .*: float and int$"),
    ([({"y": (1, np.ones(2))}, 0), ({"y": (1, np.ones(2, np.float32))}, 0)], r"0 and 1 .*float64 .*float32"),
    ([({"a": "text"}, 0)] * 2, r"not dict\[a: str\]"),
    ([({"x": [[0.0] * 9] * 8, "y": "text"}, 0)], r"x: list\[8 x list\[9 x float\]\]"),
    ([({}, 0)] * 2, r"not dict\[\]"),
    ([({"a": 1, "b": 2}, 0), ({"b": 2, "a": 1}, 0)], r"0 and 1 .*dict\[a: int, b: int\] and dict\[b: int"),
    ([({"a": 1}, 0), ({"a": 1, "b": 2}, 0)], r"0 and 1 .*dict\[a: int\] and dict\[a: int, b: int\]"),
    ([(TWO, None)] * 2, "targets must be tensors, .*, not NoneType"),
    ([((), 0)] * 2, "inputs must be tensors"),
    ([(torch.ones(2, requires_grad=True), 0)] * 2, r"samples require gradients.*detach\(\)"),
    (Dicts(), "not a dict of pixels, mask, labels; dataset.target_key=labels"),
]
"""Samples, and what is said of them."""
COLLATED = [
    (TWO, r"Of\.collate must return \(inputs, targets\), not float32 \(2,\)"),
    (([], TWO), r"Of\.collate made tuple"),
    ((TWO, THREE), r"Of\.collate made tuple"),
    (("ab", TWO), r"Of\.collate made tuple"),
]
"""What `collate` makes of two samples."""
MINIBATCHES = [
    (None, r"batches\(3, 4\) must return lists of samples"),
    ([0, 1, 2], r"batches\(3, 4\) must return lists of samples"),
    ([[0, 1], [2, 4]], r"batches\(3, 4\) returned the sample 4; samples are 0 to 3"),
]
"""What `batches` returns for 4 samples."""
IDS = torch.tensor([[0, 3, 1], [2, 4, 0]])
RANGES = [
    ({"labels": LabelRange("train", 3)}, "sample 1 of `train` has the label 3, and the model's 3 outputs"),
    ({"labels": LabelRange("train", 3, setting="model.classes")}, "sample 1 .*label 3, .*model.classes=4$"),
    ({"labels": LabelRange("train", 4), "tokens": TokenRange("eval", {0: 4})}, "sample 1 of `eval` .*token id 4; .*4"),
    ({"tokens": TokenRange("eval", {0: 4}, 9)}, "0 to 3, and the data set's 9; .*for 9"),
]
"""Ranges that the second of two samples, of token ids and a label, is not in."""
SPLITS = [
    ({"train": 1, "unsupervised": 2}, "a dict of train, unsupervised, without a split to evaluate on"),
    ({"test": 1}, "a dict of test, without the split `train`"),
    (3, "a int without `train`"),
    (SimpleNamespace(train=1), "a SimpleNamespace without `eval`"),
]
NAMES = [
    (Dicts(), "label", None, "target_key=label: sample 1 has no label; it has pixels, mask, labels"),
    (Dicts(), "labels", "image", "input_key=image: sample 1 has no image"),
    (Dicts(), ["pixels", "mask", "labels"], None, "target_key=.* no input in sample 1"),
    ([(TWO, 0)] * 2, "labels", None, "target_key=labels: .*sample 1 is a tuple"),
]


def of(samples, **attributes):
    return type("Of", (Listed,), attributes)(samples)


def fetched(samples, **ranges):
    return Fetch(samples, 0, inputs=True, targets=True, **ranges)(0, range(len(samples)))


@pytest.mark.parametrize(("samples", "named"), SAMPLES)
def test_samples_that_make_no_minibatch_are_refused(samples, named):
    assert_refused(named, fetched, samples)


@pytest.mark.parametrize(("made", "named"), COLLATED)
def test_minibatch_that_a_data_set_makes_wrongly_is_refused(made, named):
    assert_refused(named, fetched, of([(0, 0)] * 2, collate=lambda *_: made))


@pytest.mark.parametrize(("made", "named"), MINIBATCHES)
def test_own_minibatches_of_no_samples_are_refused(made, named):
    assert_refused(named, Loader, of([(0, 0)] * 4, batches=lambda *_: made), batch_size=3)


@pytest.mark.parametrize(("ranges", "named"), RANGES)
def test_labels_and_token_ids_out_of_range_are_refused(ranges, named):
    assert_refused(named, fetched, [(IDS[0], 0), (IDS[1], 3)], **ranges)


@pytest.mark.parametrize(("returned", "named"), SPLITS)
def test_missing_split_is_named_with_what_works(returned, named):
    assert_refused(named, data_object, returned)


@pytest.mark.parametrize(("split", "target", "inputs", "named"), NAMES)
def test_names_that_a_sample_does_not_have_are_refused(split, target, inputs, named):
    assert_refused(rf"^dataset\.{named}", lambda: NamedSamples(split, target, inputs)[1])


def test_unusable_value_is_named_with_the_keys_that_work():
    split = NamedSamples([{"text": "a", "ids": [1, 2], "mask": TWO, "y": 0}], "y")
    assert_refused(r"dict\[text: str, .*; dataset\.input_key=\[ids,mask\]", fetched, split)


def test_sequences_of_labels_name_the_sample_and_not_the_ignored_label():
    labels = torch.tensor([[0, -100, 4], [9, -100, -100], [1, 2, -100]])
    check = LabelRange("train", 5, ignored=-100).check
    assert_refused("sample 8 of `train` has the label 9", check, labels, [7, 8, 9])
    check(labels[[0, 2]], [7, 9])
    assert_refused("the token id -3", lambda: TokenRange("eval", {0: 4}, 9).check((-IDS,), [7, 8]))


def test_data_sets_without_length_or_samples_are_refused():
    assert_refused("generator must be a map-style", lambda: Loader((pair for pair in ()), batch_size=1))
    assert_refused("dataset.limit=null: 0 samples", Loader, Listed(), batch_size=1)
    pairs = of([(0, 0)] * 11, batches=lambda *_: [[0, 1, 2], [3]])
    named = "dataset.limit=4: 4 samples make no minibatch of 4 microbatches with train.batch_size=4"
    assert_refused(named, Loader, pairs, batch_size=4, microbatches=4, limit=4)


def test_refusal_in_a_worker_arrives_as_it_is():
    loader = Loader(Listed([(1, 2, 3)] * 2), batch_size=2, workers=1)
    assert_refused("pair, not a tuple of 3", list, loader.samples(0))
