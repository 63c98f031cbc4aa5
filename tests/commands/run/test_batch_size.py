"""train.batch_size=auto, with trial runs that have a limit of their own."""

import pytest

from pipetrain import cli
from pipetrain.commands.run.batch_size import TrialEnd, probed
from pipetrain.errors import ConfigError


def limited(samples, *, limit):
    return TrialEnd(0, "") if samples <= limit else TrialEnd(1, "stage 0 failed: OutOfMemoryError: CUDA out of memory")


@pytest.mark.parametrize(("limit", "step"), [(100, 1), (100, 8), (8, 8)])
def test_largest_fitting_batch_is_found_to_a_sixteenth(limit, step):
    found = probed([], step, 1 << 20, lambda samples: limited(samples, limit=limit))
    assert found % step == 0
    assert limit * 15 / 16 - step < found <= limit


def test_batch_that_is_larger_than_an_epoch_is_none():
    def trial(samples):
        return TrialEnd(0, "") if samples <= 50 else TrialEnd(2, "more than the 50 samples of an epoch")

    assert 46 <= probed([], 1, 1 << 20, trial) <= 50


def test_device_too_small_for_one_microbatch_each_is_told():
    with pytest.raises(ConfigError, match="not even 4 samples fit"):
        probed([], 4, 1 << 20, lambda samples: limited(samples, limit=3))


def test_run_that_fails_for_another_reason_is_told_with_it():
    with pytest.raises(ConfigError, match="no such file"):
        probed([], 1, 1 << 20, lambda _: TrialEnd(2, "pipetrain: error: dataset: no such file\n"))


@pytest.mark.parametrize(
    ("words", "message"),
    [("device=cpu", "this run is on the CPU"), ("seed=0,1", "this is a sweep"), ("method=stale_hybrid", "phases")],
)
def test_automatic_batch_is_refused_where_nothing_can_be_tried(capsys, words, message):
    assert cli.carry_out(["run", "train.batch_size=auto", words]) == 2
    assert message in capsys.readouterr().err
