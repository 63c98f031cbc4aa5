"""Fingerprints of data sets: what they tell apart, and what they leave out."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipetrain.data.fingerprint import (
    CHANGES,
    difference,
    fingerprint,
    fingerprint_like,
    unreliable_sample,
)
from pipetrain.data.loader import Loader


class Samples:
    """A split of the samples that a function makes of their indices."""

    def __init__(self, made, count=16):
        self.made = made
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.made(index)


def of(made, count=16, **options):
    return fingerprint(Loader(Samples(made, count), batch_size=4, **options), range(8))


def image(index, size=24):
    return torch.randn(3, size, size, generator=torch.Generator().manual_seed(index))


def test_equal_samples_agree_even_when_read_back_from_a_file():
    one = of(lambda i: (image(i), i))
    assert difference(one, json.loads(json.dumps(of(lambda i: (image(i), i))))) is None


class Picture:
    """As pillow's images, which numpy reads."""

    def __init__(self, color):
        self.pixels = np.full((9, 9, 3), color, np.uint8)

    @property
    def __array_interface__(self):
        return self.pixels.__array_interface__


VALUES = {
    "tensor": (image(0), image(1)),
    "bytes of an image": ((image(0) * 40 + 128).byte(), (image(1) * 40 + 128).byte()),
    "array": (np.arange(6), np.arange(1, 7)),
    "double": (np.float64(0.5), np.float64(0.6)),
    "text": ("cat", "dog"),
    "label": (100, 101),
    "label in a tensor": (torch.tensor(100), torch.tensor(101)),
    "label in a byte": (torch.tensor(100, dtype=torch.uint8), torch.tensor(101, dtype=torch.uint8)),
    "half": (image(0).half(), image(1).half()),
    "bfloat16": (image(0).bfloat16(), image(1).bfloat16()),
    "complex": (torch.complex(image(0), image(1)), torch.complex(image(0), image(2))),
    "tuple": ((image(0), 1), (image(0), 2)),
    "dict": ({"a": {"b": image(0)}}, {"a": {"b": image(1)}}),
    "other key": ({"a": 1}, {"b": 1}),
    "picture": (Picture(9), Picture(90)),
    "shape": (torch.zeros(4), torch.zeros(2, 2)),
    "kind": (torch.zeros(4), torch.zeros(4, dtype=torch.int64)),
    "not finite": (torch.tensor([1.0, torch.nan]), torch.tensor([2.0, torch.nan])),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("side", [0, 1])
def test_another_value_of_one_sample_is_named(values, side):
    def made(index, value):
        sample = [0, 0]
        sample[side] = value if index == 5 else values[0]
        return tuple(sample)

    one, other = (of(lambda i, value=value: made(i, value)) for value in values)
    assert difference(one, one) is None
    what, before, now = difference(one, other)
    assert what == f"the {('input', 'target')[side]} of sample 5"
    assert before != now


def test_labels_are_shown_as_they_are():
    one, other = of(lambda _: (0.0, 2)), of(lambda _: (0.0, torch.tensor(3)))
    assert difference(one, other) == ("the target of sample 0", "2", "3")
    assert difference(one, of(lambda _: (0.0, 2), count=12)) == ("the number of samples", "16", "12")


@pytest.mark.parametrize("rounded", [lambda x: x * (1 + 1e-5), lambda x: (x * 64).round() / 64])
def test_rounding_of_another_machine_is_no_difference(rounded):
    assert difference(of(lambda i: (image(i), i)), of(lambda i: (rounded(image(i)), i))) is None


def test_own_generator_of_an_input_is_left_out_and_its_target_compared():
    generator = np.random.default_rng()
    one = of(lambda i: (image(i) + generator.random(), i))
    assert one["read"]["3"][0] == CHANGES
    assert difference(one, of(lambda i: (image(i) + generator.random(), i))) is None
    assert difference(one, of(lambda i: (image(i), i + 1)))[0] == "the target of sample 0"
    assert unreliable_sample(one) is None


def test_sample_whose_input_and_target_change_is_unreliable():
    generator = np.random.default_rng()

    def rotated(_index):
        turns = int(generator.integers(1 << 30))
        return float(turns), turns

    assert unreliable_sample(of(rotated)) == "0"


def test_numbers_of_the_default_generators_are_keyed_by_sample():
    def drawn(index):
        return torch.rand(3), int(np.random.randint(1 << 30)) + index

    one = of(drawn)
    torch.rand(7)
    assert difference(one, of(drawn)) is None
    assert CHANGES not in [part for parts in one["read"].values() for part in parts]
    assert difference(one, of(drawn, seed=1)) is not None


def test_value_of_unknown_type_is_left_out():
    one = of(lambda i: (SimpleNamespace(x=i), i))
    assert one["read"]["0"] == [None, ["0", []]]
    assert unreliable_sample(of(lambda i: (SimpleNamespace(x=i), SimpleNamespace()))) is None


def test_sample_that_cannot_be_read_is_left_out():
    one = of(lambda i: (image(i), 1 // (i - 2)))
    assert [*one["read"]] == ["0", "1", "3", "4", "5", "6", "7"]


def test_samples_of_another_fingerprint_are_read_once_or_twice():
    read = []
    split = Samples(lambda i: (read.append(i), i)[::-1])
    other = {"samples": 16, "read": {"9": [None, None], "3": [None, None], "20": [None, None]}}
    for repeats, times in ((True, 2), (False, 1)):
        read.clear()
        found = fingerprint_like(other, Loader(split, batch_size=4), repeats=repeats)
        assert [*found["read"]] == ["3", "9"]
        assert read.count(9) == times


def test_slow_samples_are_not_read_on(monkeypatch):
    clock = iter([0.0, 0.1, 0.2, 0.3])
    monkeypatch.setattr("pipetrain.data.fingerprint.time.monotonic", lambda: next(clock))
    assert [*of(lambda i: (image(i), i))["read"]] == ["0", "1"]


def test_fingerprint_leaves_generators_where_they_were():
    loader = Loader(Samples(lambda i: (torch.rand(2), i)), batch_size=2)
    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    fingerprint(loader, range(4))
    assert torch.equal(torch.rand(2), expected)
