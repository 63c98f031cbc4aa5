"""When callbacks are called, with what, and what happens when they raise an exception."""

import json
import os
import random
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import cli
from support.worker_pool import distributed, job, on, simulated

from pipetrain import Callback
from pipetrain.engine.errors import RunError
from pipetrain.runner.launch.signals import Interruption
from pipetrain.runner.launch.worker import run_simulated
from pipetrain.runner.tracking import records
from pipetrain.runner.tracking.callbacks import CallbackCaller, RunInfo
from pipetrain.runner.training import session
from pipetrain.runner.training.checkpoint import store, tensor_file

OWN = "support.own_callbacks"
HASHES = ("loss_sha256", "weights_sha256")
LONG = {"train": {"epochs": 2}, "checkpoint": {"every_epochs": 1}}


def target(name, **options):
    return {"_target_": f"{OWN}.{name}", **options}


def calls(file, *left_out):
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [call for call in found if call[0] not in left_out]


def named(run):
    """What a callback of the run in `run` notes, in order, without checkpoints, which become complete at some time."""
    return calls(run / "calls", "on_checkpoint", "on_start")


def with_calls(folder, method="pipedream", **changes):
    folder.mkdir(parents=True, exist_ok=True)
    return job(folder, method, 3, callbacks=[target("Calls", file=str(folder / "calls"))], **{**LONG, **changes})


def expected(first, last, status="completed"):
    """The calls of a run of six steps an epoch, without those of checkpoints and its start."""
    lines = [["on_record", "start", first]]
    for step in range(first + 1, last + 1):
        lines += [["on_record", "interval", step], ["on_step", step]]
        if step % 6 == 0:
            lines += [["on_record", "epoch", step], ["on_epoch", step]]
            lines += [["on_record", "eval", step], ["on_evaluation", step]]
    return [*lines, ["on_end", status, last]]


@pytest.mark.slow
def test_callbacks_see_a_run_in_order_in_both_executors(tmp_path):
    here, there = with_calls(tmp_path / "simulated"), with_calls(tmp_path / "distributed")
    simulated(here)
    distributed([there])
    for each in (here, there):
        path = each.run.path
        assert calls(path / "calls")[0] == ["on_start", str(path), 3, 0]
        assert named(path) == expected(0, 12)
        saved = [call for call in calls(path / "calls") if call[0] == "on_checkpoint"]
        assert saved == [["on_checkpoint", 6, True], ["on_checkpoint", 12, True]]
        assert calls(path / "calls")[-1][0] == "on_end"


@pytest.mark.slow
def test_resumed_run_calls_for_its_own_steps_once(tmp_path):
    made = with_calls(tmp_path)

    def show(record):
        if record["kind"] == "eval" and record["step"] == 6:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = run_simulated(replace(made, settings=on_simulator(made)), show, Interruption())
    assert stopped["status"] == "interrupted"
    step = stopped["steps"]
    assert named(tmp_path)[-1] == ["on_end", "interrupted", step]
    (tmp_path / "calls").unlink()
    simulated(replace(made, resume=store.newest_undamaged(str(tmp_path)).resolve()))
    assert calls(tmp_path / "calls")[0][-1] == step
    drained = [["on_record", "drain", step]]
    assert [call for call in named(tmp_path) if call not in drained] == expected(step, 12)


def on_simulator(made):
    return replace(made.settings, executor=replace(made.settings.executor, name="simulated"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gpipe", "pipeoptim"])
def test_callbacks_cannot_change_what_a_run_computes(tmp_path, method):
    def hashes(name, run, **changes):
        found = run(job(tmp_path / name, method, 2, **LONG, **changes))
        return [found[each] for each in HASHES], run

    def alone(made):
        return distributed([made])[0]

    meddling = {"callbacks": [target("Meddling"), target("Meddling")], "log": {"to": ["tensorboard"]}}
    plain, _ = hashes("plain", simulated)
    assert hashes("simulated", simulated, **meddling)[0] == plain
    assert hashes("distributed", alone, **meddling)[0] == plain
    kinds = [each["kind"] for each in records.read_records(job(tmp_path / "simulated", method, 2).run)]
    assert kinds.count("interval") == 12
    assert "warning" not in kinds


class Drawing(Callback):
    def __init__(self):
        self.drawn = []

    def on_record(self, record):
        record["step"] = 7
        torch.set_grad_enabled(False)
        self.drawn.append((torch.rand(()).item(), np.random.rand(), random.random()))


RECORD = {"kind": "interval", "step": 1}
RUN = RunInfo("run", {"seed": 3}, {})


def started(*callbacks, stops=False):
    warnings = []
    caller = CallbackCaller({f"callbacks[{i}]": each for i, each in enumerate(callbacks)}, warnings.append, stops=stops)
    caller.start(RUN)
    return caller, warnings


def test_draws_of_callbacks_go_on_and_the_global_ones_do_not_move():
    drawing = Drawing()
    caller, warnings = started(drawing)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    for _ in range(3):
        caller.record(RECORD)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert torch.is_grad_enabled()
    assert all(len(set(column)) == 3 for column in zip(*drawing.drawn, strict=True))
    assert RECORD["step"] == 1
    assert warnings == []


class Counting(Callback):
    def __init__(self, fails_in=None):
        self.seen, self.fails_in = [], fails_in

    def __getattribute__(self, name):
        if name.startswith("on_"):
            self.seen.append(name)
            if name == self.fails_in:
                return lambda *_: sys_exit() if name == "on_end" else 1 / 0
        return super().__getattribute__(name)


def sys_exit():
    raise SystemExit(3)


def test_callback_that_raises_is_called_no_more_and_others_are():
    first, second = Counting("on_step"), Counting()
    caller, warnings = started(first, second)
    for _ in range(2):
        caller.record(RECORD)
    caller.end({})
    assert first.seen == ["on_start", "on_record", "on_step"]
    assert second.seen == ["on_start", *["on_record", "on_step"] * 2, "on_end"]
    (line,) = warnings
    assert line.startswith("callbacks[0]: on_step raised ZeroDivisionError: division by zero (")


@pytest.mark.parametrize("method", ["on_start", "on_record", "on_step"])
def test_exception_ends_a_run_that_is_to_stop(method):
    def whole():
        caller, _ = started(Counting(method), stops=True)
        caller.record(RECORD)

    with pytest.raises(RunError, match=rf"^callbacks\[0\]: {method} raised ZeroDivisionError"):
        whole()


def test_any_exception_of_a_callback_is_only_a_warning_as_is_one_at_the_end():
    class Leaving(Callback):
        def on_step(self, _record):
            raise GeneratorExit

    for callback, stops, line in (
        (Leaving(), False, "callbacks[0]: on_step raised GeneratorExit ("),
        (Counting("on_end"), True, "callbacks[0]: on_end raised sys.exit(3) was called"),
    ):
        caller, warnings = started(callback, stops=stops)
        caller.record(RECORD)
        caller.end({})
        assert [each.startswith(line) for each in warnings] == [True]


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, ValueError("another")])
def test_checkpoint_complete_after_a_failure_is_reported(tmp_path, monkeypatch, error):
    class Noting(Callback):
        def on_checkpoint(self, step, folder):
            seen.append((step, folder.is_dir()))
            if error:
                raise error

        def on_end(self, summary):
            seen.append(summary["status"])

    def write(path, tensors):
        assert ended.wait(60)
        written(path, tensors)

    def show(record):
        if record["kind"] == "interval" and record["step"] == 3:
            ended.set()
            raise ValueError("no more")

    seen, ended, written = [], threading.Event(), tensor_file.write
    monkeypatch.setattr(tensor_file, "write", write)
    monkeypatch.setattr(session, "build_callbacks", lambda *_: {"noting": Noting()})
    made = job(tmp_path, "gpipe", 2, checkpoint={"every_steps": 2}, log={"callback_errors": "stop"})
    with pytest.raises(ValueError, match="no more"):
        run_simulated(on("simulated", made), show, Interruption())
    assert seen == [(2, True), *([] if error else ["failed"])]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["simulated", "distributed"])
def test_failing_callback_ends_the_run_only_if_it_is_to(tmp_path, executor):
    words = [*cli.TINY, "threads=1", "partition.stages=2", f"executor={executor}"]
    calls_file = tmp_path / "calls"
    both = f"callbacks=[{{_target_: {OWN}.Failing}}, {{_target_: {OWN}.Calls, file: {calls_file}}}]"
    done = cli.run_here(tmp_path / "warned", *words, both)
    (line,) = [line for line in done.stderr.splitlines() if "callbacks" in line]
    assert line.startswith(f"pipetrain: warning: callbacks[0]._target_={OWN}.Failing: on_step raised ValueError")
    (record,) = [each for each in cli.records(tmp_path / "warned") if each["kind"] == "warning"]
    assert record["step"] == 3
    assert line.endswith(record["message"])
    assert calls(calls_file)[-1] == ["on_end", "completed", 10]
    calls_file.unlink()
    name = rf"callbacks\[0\]._target_={OWN}.Failing: on_step raised ValueError: no good"
    cli.fails(tmp_path / "stopped", *words, both, "log.callback_errors=stop", message=name)
    assert cli.summary(tmp_path / "stopped")["status"] == "failed"
    assert calls(calls_file)[-1][:2] == ["on_end", "failed"]
