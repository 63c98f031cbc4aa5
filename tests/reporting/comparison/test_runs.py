"""Runs of a comparison in processes of their own."""

import math
import os
import time
from itertools import count
from types import SimpleNamespace

import pytest
from support.made_up_runs import contender
from support.refusals import assert_refused

from pipetrain.reporting.comparison import runs as runs_module
from pipetrain.reporting.comparison.contenders import contenders_of
from pipetrain.reporting.comparison.runs import PlannedRun, Runs
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.runner.tracking.run_directory import RunDirectory

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
    assert not runs.carry_out([planned()], lambda: None)
    assert not started
    assert runs.result(planned()) is None


def test_contenders_with_the_same_results_share_a_run(tmp_path, started):
    runs = Runs(tmp_path, 2, math.inf)
    every = [planned(of=contender("pipedream", step_s=seconds)) for seconds in (1.0, 2.0)]
    assert runs.carry_out(every, lambda: None)
    assert len(started) == 1
    assert [runs.result(each).status for each in every] == ["failed", "failed"]
    assert runs.result(every[0]).reason.startswith("its process ended with exit code 1")


def test_run_that_would_end_too_late_is_not_started(tmp_path, started, monkeypatch):
    lasting = ComparedRun(tmp_path, "completed", numbers={"steps": 100, "wall_s": 200.0})
    monkeypatch.setattr(Runs, "_left_by", lambda *_: lasting)
    every = [planned(seed=seed) for seed in range(3)]
    assert not Runs(tmp_path, 1, time.monotonic() + 100).carry_out(every, lambda: None)
    assert started == every[:1]


class Endless:
    """A process that only ends if it is told to."""

    exitcode = -15

    def __init__(self):
        self.sentinel, self._other = os.pipe()

    def terminate(self):
        os.close(self._other)

    def join(self):
        os.close(self.sentinel)


def test_runs_end_with_the_time_and_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "_TICK_SECONDS", 0.05)
    monkeypatch.setattr(Runs, "_start", lambda self, run: (self._folder / run.name).mkdir() or Endless())
    runs, every, seen = Runs(tmp_path, 2, time.monotonic() + 0.2), [planned(seed=seed) for seed in range(3)], []
    assert not runs.carry_out(every, lambda: seen.append((runs.newest, len([*tmp_path.iterdir()]))))
    assert seen[0] == (every[1], 2)
    assert len(seen) > 2
    assert not [*tmp_path.iterdir()]
    assert runs.newest is None
    assert [runs.result(each) for each in every] == [None] * 3


def test_time_left_is_that_of_the_steps_to_come_at_the_known_speeds(tmp_path, monkeypatch):
    known, other = contender("pipedream", estimated_s=10), contender("gpipe", estimated_s=20)
    runs = Runs(tmp_path, 2, math.inf)
    assert runs.left_s([known, known, other]) == pytest.approx((100 * 0.1 * 2 + 100 * 0.2) / 2)
    ended = planned(of=known)
    monkeypatch.setattr(Runs, "_start", lambda *_: Ended())
    lasting = ComparedRun(tmp_path, "completed", numbers={"steps": 100, "wall_s": 50.0})
    monkeypatch.setattr(Runs, "_left_by", lambda *_: lasting)
    assert runs.carry_out([ended], lambda: None)
    assert runs.left_s([known, other]) == pytest.approx((100 * 0.5 + 100 * 0.2 * 5) / 2)  # all are 5 times as slow
    assert Runs(tmp_path, 2, time.monotonic() + 1).left_s([known]) <= 1


def test_run_that_goes_on_counts_by_its_recorded_steps(tmp_path, monkeypatch):
    clock = count()
    monkeypatch.setattr(runs_module, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(runs_module, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))

    def start(self, run):
        folder = RunDirectory(self._folder / run.name)
        folder.path.mkdir()
        folder.metrics.write_text('{"kind": "interval", "step": 24}\n{"kind": "interval", "step": 25}\n{"kin')
        return Endless()

    monkeypatch.setattr(Runs, "_start", start)
    runs, seen = Runs(tmp_path, 1, 1000.0), []
    runs.carry_out([planned()], lambda: seen.append(runs.left_s([planned().contender])))
    # it begins at 1, is seen at 2, and 100 of its steps take four times as long as the 25
    assert seen[:2] == [3.0, 3 * 4.0]
    assert seen[-1] < 10


@pytest.mark.slow
def test_runs_end_with_results_which_are_found_again(tmp_path, monkeypatch):
    (small,) = contenders_of(SMALL)
    runs = Runs(tmp_path, 2, time.monotonic() + 200)
    every = [planned(rate, of=small) for rate in ("0.1", "1e30", "none")]
    assert runs.carry_out(every, lambda: None)
    assert [runs.result(each).status for each in every] == ["completed", "diverged", "failed"]
    assert runs.result(every[2]).reason.startswith("optimizer.lr=none: must be a number above 0")
    assert runs.result(every[0]).final["loss"] > 0
    assert not list(tmp_path.glob("*/checkpoints"))
    assert [each.name for each in tmp_path.glob("*.log")] == [f"{every[2].name}.log"]

    again = Runs(tmp_path, 2, time.monotonic() + 200)
    monkeypatch.setattr(Runs, "_start", lambda *_: pytest.fail("it ran"))
    assert again.carry_out(every[:2], lambda: None)
    assert again.result(every[2]) is None  # a run that failed is run again


@pytest.mark.slow
def test_interrupted_runs_leave_nothing_behind(tmp_path):
    (long,) = contenders_of([*SMALL, "train.epochs=100000"])

    def interrupt():
        if runs.result(every[0]):
            raise KeyboardInterrupt

    runs = Runs(tmp_path, 2, time.monotonic() + 200)
    every = [planned(rate, of=long) for rate in ("1e30", "0.1", "0.2")]  # the first diverges at once
    with pytest.raises(KeyboardInterrupt):
        runs.carry_out(every, interrupt)
    assert [each.name for each in tmp_path.iterdir()] == [every[0].name]
    assert runs.result(every[1]) is None
