"""Runs of a comparison in processes of their own."""

import math
import os
import time

import pytest
from support.made_up_runs import contender
from support.refusals import assert_refused

from pipetrain.reporting.comparison.contenders import contenders_of
from pipetrain.reporting.comparison.runs import PlannedRun, Runs
from pipetrain.reporting.sweep.compared_run import ComparedRun

SMALL = (
    "model=lenet5", "method=pipedream", "partition.stages=2", "dataset.limit=64", "train.batch_size=32",
    "train.epochs=2", "device=cpu", "planner.bandwidth=false", "topology.gigabytes_per_s=[1.25]",
)  # fmt: skip


def planned(rate="0.1", seed=0, *, of=None, tunes=False):
    return PlannedRun(of or contender("pipedream"), (f"optimizer.lr={rate}",), seed, tunes=tunes)


def test_directories_differ_by_all_that_results_depend_on():
    others = [
        planned("0.2"),
        planned(seed=1),
        planned(tunes=True),
        planned(of=contender("pipedream", "partition.stages=4")),
    ]
    assert len({each.name for each in (planned(), *others)}) == 1 + len(others)
    assert planned().name == planned(of=contender("pipedream", step_s=3.0)).name


def test_trial_is_evaluated_only_at_its_end():
    assert planned(tunes=True).words[-2:] == ["seed=0", "eval.every_epochs=100"]
    assert planned().words[-1] == "seed=0"


@pytest.mark.parametrize("name", ["runs", "runs/pipedream-1", "runs/pipedream-1/config.yaml", "runs/pipedream-1.log"])
def test_folder_that_leads_elsewhere_is_refused(tmp_path, name):
    link = tmp_path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path)
    assert_refused(f"{link}: is a symbolic link", Runs, tmp_path / "runs", 1, math.inf)


class Ended:
    """A process that has ended without a result."""

    exitcode = 1

    def __init__(self):
        self.sentinel, other = os.pipe()
        os.close(other)

    def join(self, *_):
        os.close(self.sentinel)


@pytest.fixture
def started(monkeypatch):
    """The runs that are started, in place of their processes."""
    found = []
    monkeypatch.setattr(Runs, "_start", lambda _, run: found.append(run) or Ended())
    return found


def test_no_run_starts_once_the_time_is_over(tmp_path, started):
    runs = Runs(tmp_path / "runs", 2, time.monotonic() - 1)
    assert not runs.carry_out([planned()], lambda _: pytest.fail("it ran"))
    assert not started


def test_contenders_with_the_same_results_share_a_run(tmp_path, started):
    runs = Runs(tmp_path, 2, math.inf)
    every = [planned(of=contender("pipedream", step_s=seconds)) for seconds in (1.0, 2.0)]
    assert runs.carry_out(every, repr)
    assert len(started) == 1
    assert [runs.result(each).status for each in every] == ["failed", "failed"]
    assert runs.result(every[0]).reason.startswith("its process ended with exit code 1")


def test_run_that_would_end_too_late_is_not_started(tmp_path, started, monkeypatch):
    lasting = ComparedRun(tmp_path, "completed", numbers={"steps": 100, "wall_s": 200.0})
    monkeypatch.setattr(Runs, "_left_by", lambda *_: lasting)
    ended, every = [], [planned(seed=seed) for seed in range(3)]
    assert not Runs(tmp_path, 1, time.monotonic() + 100).carry_out(every, ended.append)
    assert started == ended == every[:1]


@pytest.mark.slow
def test_runs_end_with_results_which_are_found_again(tmp_path):
    (small,) = contenders_of(SMALL)
    runs, ended = Runs(tmp_path, 2, time.monotonic() + 200), []
    every = [planned(rate, of=small) for rate in ("0.1", "1e30", "none")]
    assert runs.carry_out(every, ended.append)
    assert {each.name for each in ended} == {each.name for each in every}
    assert [runs.result(each).status for each in every] == ["completed", "diverged", "failed"]
    assert runs.result(every[2]).reason.startswith("optimizer.lr=none: must be a number above 0")
    assert runs.result(every[0]).final["loss"] > 0
    assert not list(tmp_path.glob("*/checkpoints"))
    assert [each.name for each in tmp_path.glob("*.log")] == [f"{every[2].name}.log"]

    again = Runs(tmp_path, 2, time.monotonic() + 200)
    assert again.carry_out(every[:2], pytest.fail)
    assert again.result(every[2]) is None  # a run that failed is run again


@pytest.mark.slow
def test_interrupted_runs_leave_nothing_behind(tmp_path):
    (long,) = contenders_of([*SMALL, "train.epochs=100000"])

    def interrupt(_):
        raise KeyboardInterrupt

    runs = Runs(tmp_path, 2, time.monotonic() + 200)
    every = [planned(rate, of=long) for rate in ("1e30", "0.1", "0.2")]  # the first diverges at once
    with pytest.raises(KeyboardInterrupt):
        runs.carry_out(every, interrupt)
    assert [each.name for each in tmp_path.iterdir()] == [every[0].name]
    assert runs.result(every[1]) is None
