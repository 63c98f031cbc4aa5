"""Windows of tokens, shuffled or carried on."""

import numpy as np
import pytest
import torch
from support.refusals import assert_refused

from pipetrain.data.loader import Loader
from pipetrain.data.ranges import known_labels
from pipetrain.zoo.data.text.language import CarriedWindows, Windows


def windows(positions, kind=Windows, tokens=23, vocabulary_size=23):
    return kind(np.arange(tokens, dtype=np.int32), vocabulary_size, positions, "book.txt")


def test_windows_are_consecutive_and_targets_one_token_ahead():
    samples = windows(5)
    assert len(samples) == 4
    inputs, targets = samples[3]
    assert (inputs.tolist(), targets.tolist()) == ([15, 16, 17, 18, 19], [16, 17, 18, 19, 20])
    assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)
    assert torch.equal(known_labels(samples), torch.stack([samples[i][1] for i in range(4)]).int())
    with pytest.raises(IndexError):
        samples[4]


def test_last_token_may_be_a_target_of_a_whole_window():
    assert len(windows(5, tokens=21)) == 4
    assert len(windows(5, tokens=20)) == 3


def test_rows_of_carried_windows_continue_in_the_next_minibatch():
    loader = Loader(windows(2, CarriedWindows), batch_size=3, shuffle=True)
    (first,), (second,), (third,) = loader.inputs(1)
    assert first.tolist() == [[0, 1], [6, 7], [12, 13]]
    assert second.tolist() == [[2, 3], [8, 9], [14, 15]]
    assert third.tolist() == [[4, 5], [10, 11], [16, 17]]
    assert (len(loader), loader.unlisted, loader.dropped) == (3, 2, 0)


def test_carried_windows_fewer_than_rows_make_one_minibatch():
    assert Loader(windows(5, CarriedWindows), batch_size=64).sizes(0) == [4]


def test_token_outside_vocabulary_is_named_with_largest_id(monkeypatch):
    assert_refused(r"dataset.vocabulary_size=20: book.txt .* 22, .* 23", windows, 5, vocabulary_size=20)
    monkeypatch.setattr("pipetrain.zoo.data.text.language._CHECKED_FIRST", 5)
    samples = windows(5, vocabulary_size=20)
    assert_refused(r"dataset.vocabulary_size=20: book.txt .* 20, .* 21", lambda: samples[3])


@pytest.mark.parametrize(("positions", "reason"), [(0, "at least 1"), (23, "takes 24 tokens, and book.txt has 23")])
def test_sample_without_room_is_refused(positions, reason):
    assert_refused(f"dataset.positions={positions}: .*{reason}", windows, positions)
