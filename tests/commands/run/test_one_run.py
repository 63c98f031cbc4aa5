"""One run as the command line sees it, in this process."""

import errno
import json
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import threading

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf
from support.one_run import HYDRA, carried_out

from pipetrain.commands.run.ending import log_thread
from pipetrain.engine.errors import ConfigError, ExitCode, PreemptedError
from pipetrain.runner.tracking import records, summary
from pipetrain.runner.tracking.evaluations import Evaluations
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import locked
from pipetrain.runner.tracking.stored_settings import stored_settings


def ends(monkeypatch, error):
    """Puts an exception in the place of a simulation."""

    def simulate(_job, _show, _interruption):
        raise error

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_simulated", simulate)


def test_completed_run_shows_plan_and_summary(tmp_path, capsys):
    assert carried_out(tmp_path / "run", "train.epochs=1") is ExitCode.COMPLETED
    out, _ = capsys.readouterr()
    assert out.startswith("stage  layers")
    assert f"writing to {tmp_path / 'run'}" in out
    assert "completed after 6 steps" in out
    directory = RunDirectory(tmp_path / "run")
    assert stored_settings(directory, calls=()).train.epochs == 1
    assert OmegaConf.load(directory.hydra / "overrides.yaml") == ["method=pipedream", "seed=3"]
    assert len(json.loads(directory.plan.read_text())["stages"]) == 2
    assert summary.read(directory)["steps"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "terminal", "shown"), [("RUN", True, True), ("MULTIRUN", True, False), ("RUN", False, False)]
)
def test_terminal_run_ends_with_next_steps(tmp_path, monkeypatch, capsys, mode, terminal, shown):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    words = ("train.epochs=1", "log.to=[tensorboard]")
    carried_out(tmp_path / "run", *words, hydra=OmegaConf.merge(HYDRA, {"mode": RunMode[mode]}))
    assert (f"next: tensorboard --logdir {tmp_path / 'run'}" in capsys.readouterr().out) is shown


def test_refused_run_is_one_line_and_leaves_nothing(tmp_path, capsys):
    assert carried_out(tmp_path / "run", "train.epochs=0") is ExitCode.WRONG_USAGE
    assert capsys.readouterr() == ("", "pipetrain: error: train.epochs=0: must be at least 1\n")
    assert list(tmp_path.iterdir()) == []


def test_diverged_run_names_its_step(tmp_path, capsys):
    assert carried_out(tmp_path / "run", "optimizer.lr=1e30") is ExitCode.DIVERGED
    assert capsys.readouterr().err.startswith("pipetrain: error: diverged: the loss of step ")
    assert summary.read(RunDirectory(tmp_path / "run"))["status"] == "diverged"


def test_overflowed_evaluation_is_recorded_as_strict_json(tmp_path, capsys):
    def refused(constant):
        raise AssertionError(constant)

    run = RunDirectory(tmp_path / "run")
    assert carried_out(run.path, "optimizer.lr=1e30", "train.max_steps=1") is ExitCode.COMPLETED
    assert "eval loss not finite" in capsys.readouterr().out
    for file in (run.summary, run.checkpoint(1) / "progress.json"):
        assert json.loads(file.read_text(), parse_constant=refused)["final"]["loss"] is None
    lines = [json.loads(line, parse_constant=refused) for line in run.metrics.read_text().splitlines()]
    assert lines[-1]["eval_loss"] is None
    assert Evaluations(json.loads((run.checkpoint(1) / "progress.json").read_text())).best.keys() == {"loss", "top1"}


def test_run_failing_after_resume_counts_checkpoint_steps(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    settings = ("train.epochs=2", "checkpoint.every_epochs=1")
    assert carried_out(folder, *settings) == 0
    shutil.rmtree(folder / "checkpoints" / "step-00000012")
    ends(monkeypatch, ValueError("no"))
    assert carried_out(folder, *settings, "resume=auto") == 1
    assert json.loads((folder / "summary.json").read_text())["steps"] == 6


def test_interrupted_run_writes_summary_and_restores_handlers(tmp_path, monkeypatch, capsys):
    ends(monkeypatch, KeyboardInterrupt("SIGTERM"))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path / "run")
    assert (
        f"interrupted before there was a checkpoint; partial results are in {tmp_path / 'run'}"
        in capsys.readouterr().out
    )
    assert signal.getsignal(signal.SIGTERM) is before
    assert summary.read(RunDirectory(tmp_path / "run"))["status"] == "interrupted"


def test_raising_dataset_is_refused_without_folder(tmp_path, monkeypatch, capsys):
    def label(_self, _index):
        return {}["label"]

    monkeypatch.setattr("pipetrain.zoo.data.images.synthetic.SyntheticImages.__getitem__", label)
    assert carried_out(tmp_path / "run") is ExitCode.WRONG_USAGE
    line = capsys.readouterr().err
    assert re.fullmatch(r"pipetrain: error: dataset: sample \d+: KeyError: 'label' \(.*test_one_run.py:\d+\)\n", line)
    assert not (tmp_path / "run").exists()


def test_exception_while_a_run_is_prepared_is_one_line(tmp_path, monkeypatch, capsys):
    def prepare(_settings, _run):
        return {}["label"]

    monkeypatch.setattr("pipetrain.runner.training.preflight.prepare", prepare)
    assert carried_out(tmp_path / "run") is ExitCode.FAILED
    line = capsys.readouterr().err
    assert re.fullmatch(r"pipetrain: error: KeyError: 'label' \(.*test_one_run.py:\d+\)\n", line)


@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, PreemptedError)])
def test_interrupt_during_preparation_leaves_no_folder(tmp_path, monkeypatch, capsys, number, end):
    monkeypatch.setattr("pipetrain.runner.training.preflight.prepare", lambda *_: os.kill(os.getpid(), number))
    folder = tmp_path / "outputs" / "2026-01-02" / "12-00-00"
    folder.mkdir(parents=True)  # as Hydra does
    with pytest.raises(end):
        carried_out(folder)
    assert capsys.readouterr().out == "interrupted before the run began; nothing was written\n"
    assert not (tmp_path / "outputs").exists()


def test_interrupt_of_another_rank_leaves_its_working_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pipetrain.runner.training.preflight.prepare", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path)
    assert capsys.readouterr().out == ""
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no\nmore"), r"ValueError: no more \(.*test_one_run.py:\d+\)"),
        (SystemExit(3), r"sys.exit\(3\) was called \(.*"),
        (GeneratorExit(), "GeneratorExit.*"),
    ],
)
def test_whatever_a_users_code_raises_is_one_line(tmp_path, monkeypatch, capsys, error, reason):
    ends(monkeypatch, error)
    assert carried_out(tmp_path / "run") is ExitCode.FAILED
    assert re.fullmatch(f"pipetrain: error: {reason}\n", capsys.readouterr().err)
    left = summary.read(RunDirectory(tmp_path / "run"))
    assert left["status"] == "failed"
    assert re.match(reason, left["reason"])


COMPLETED = {"status": "completed", "steps": 6, "wall_s": 1.0, "per_stage": []}


@pytest.mark.parametrize("error", [KeyboardInterrupt("SIGTERM"), OSError("late")])
def test_run_whose_summary_is_written_has_ended_as_that_says(tmp_path, monkeypatch, capsys, error):
    def simulate(job, _show, _interruption):
        summary.write(job.run, COMPLETED)
        raise error

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_simulated", simulate)
    assert carried_out(tmp_path / "run") is ExitCode.COMPLETED
    out, err = capsys.readouterr()
    assert "completed after 6 steps" in out
    assert err == ""


@pytest.mark.parametrize(
    ("left", "error", "status"),
    [(COMPLETED, None, "completed"), (COMPLETED, OSError("late"), "completed"), (None, OSError("no"), "failed")],
)
def test_signal_ends_sweep_even_if_its_run_completes_or_fails(tmp_path, monkeypatch, left, error, status):
    def simulate(job, _show, interruption):
        interruption.note(signal.SIGINT)  # the run is broken off, and drains
        if left is not None:
            summary.write(job.run, left)
        if error is not None:
            raise error
        return left

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_simulated", simulate)
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path / "run", hydra=OmegaConf.merge(HYDRA, {"mode": RunMode.MULTIRUN}))
    assert summary.read(RunDirectory(tmp_path / "run"))["status"] == status


def test_full_disk_names_safe_checkpoint_and_how_to_resume(tmp_path, monkeypatch, capsys):
    def simulate(job, _show, _interruption):
        job.run.checkpoint(6).mkdir(parents=True)
        (job.run.checkpoint(6) / "progress.json").touch()
        (job.run.checkpoints / "step-00000012.partial").mkdir()
        raise RuntimeError("write failed") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_simulated", simulate)
    folder = tmp_path / "a run"
    assert carried_out(folder) is ExitCode.FAILED
    error = capsys.readouterr().err
    assert error.startswith("pipetrain: error: RuntimeError: write failed ")
    assert "; a disk is full; checkpoint step 6 is intact; free disk space, then resume with: " in error
    command = error.partition("resume with: ")[2]
    assert shlex.split(command) == [
        "pipetrain", "run", "method=pipedream", "seed=3", f"hydra.run.dir='{folder}'", "resume=auto",
    ]  # fmt: skip
    assert not (folder / "checkpoints" / "step-00000012.partial").exists()
    assert summary.read(RunDirectory(folder))["status"] == "failed"


def test_run_directory_that_was_removed_is_named(tmp_path, monkeypatch, capsys):
    def simulate(job, _show, _interruption):
        shutil.rmtree(job.run.path)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "events")

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_simulated", simulate)
    assert carried_out(tmp_path / "run") is ExitCode.FAILED
    said = "the run directory was removed or renamed during the run"
    assert capsys.readouterr().err == f"pipetrain: error: {tmp_path / 'run'}: {said}\n"
    assert not (tmp_path / "run").exists()


def test_run_that_completes_in_what_is_left_of_its_directory_fails(tmp_path, monkeypatch, capsys):
    def simulate(job, _show, _interruption):
        (job.run.path / ".lock").unlink()  # as by a removal that a checkpoint overtakes
        summary.write(job.run, COMPLETED)
        return COMPLETED

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_simulated", simulate)
    assert carried_out(tmp_path / "run") is ExitCode.FAILED
    assert "run: the run directory was removed or renamed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "run"),
            ExitCode.FAILED,
            "; a disk is full; no checkpoint was",
        ),
        (ConfigError("metrics.jsonl: damaged"), ExitCode.WRONG_USAGE, "error: metrics.jsonl: damaged"),
    ],
)
def test_error_before_the_settings_are_written_is_told_as_it_is(tmp_path, monkeypatch, capsys, error, code, said):
    monkeypatch.chdir(tmp_path)

    def write_whole(_path, _text):
        raise error

    monkeypatch.setattr("pipetrain.runner.api.reporting.write_whole", write_whole)
    assert carried_out(tmp_path / "run") is code
    assert said in capsys.readouterr().err


def test_failure_is_told_though_its_log_cannot_be_written(tmp_path, monkeypatch, capsys):
    handler = logging.FileHandler(tmp_path / "missing" / "pipetrain.log", delay=True)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    ends(monkeypatch, ValueError("no"))
    assert carried_out(tmp_path / "run") is ExitCode.FAILED
    assert capsys.readouterr().err.startswith("pipetrain: error: ValueError: no (")


def test_refused_run_leaves_no_log_handler_in_removed_folder(tmp_path, monkeypatch):
    gone = logging.FileHandler(tmp_path / "run" / "pipetrain.log", delay=True)
    other = logging.FileHandler(tmp_path / "other.log", delay=True)
    monkeypatch.setattr(logging.getLogger(), "handlers", [gone, other])
    (tmp_path / "run").mkdir()
    assert carried_out(tmp_path / "run", "train.epochs=-1") is ExitCode.WRONG_USAGE
    assert logging.getLogger().handlers == [other]


def test_thread_that_dies_is_told_in_the_log_alone(tmp_path, monkeypatch, capsys):
    handler = logging.FileHandler(tmp_path / "pipetrain.log")
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    monkeypatch.setattr(threading, "excepthook", log_thread)
    thread = threading.Thread(target=lambda: {}["label"])
    thread.start()
    thread.join()
    handler.close()
    assert capsys.readouterr().err == ""
    assert "KeyError: 'label'" in (tmp_path / "pipetrain.log").read_text()


def test_unwritable_run_directory_is_refused_before_start(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert carried_out(tmp_path / "file" / "run") is ExitCode.WRONG_USAGE
    assert "hydra.run.dir=" in capsys.readouterr().err


@pytest.fixture
def outer(tmp_path, monkeypatch, capsys):
    """Carries out a run as a rank of an outer launcher; returns its exit code and what it prints."""

    def carry_out(rank, joined, *, size="2"):
        monkeypatch.setattr("pipetrain.runner.launch.worker.run_under_torchrun", joined)
        monkeypatch.setattr("pipetrain.commands.run.one_run.exit_now", sys.exit)
        monkeypatch.setattr("pipetrain.commands.run.one_run._PRECEDENCE_SECONDS", 0.0)
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", size)
        with pytest.raises(SystemExit) as end:
            carried_out(tmp_path / "run", "executor.name=distributed")
        return end.value.code, capsys.readouterr()

    return carry_out


@pytest.mark.parametrize(("rank", "told"), [("0", 1), ("1", 0)])
def test_stopped_run_of_outer_launcher_is_reported_once(outer, rank, told):
    def joined(job, _show, _on_end, _interruption, on_met):
        on_met(job)
        raise KeyboardInterrupt

    code, said = outer(rank, joined)
    assert code is ExitCode.INTERRUPTED
    assert said.out.count("interrupted before there was a checkpoint") == told


@pytest.mark.parametrize(("rank", "told"), [("0", 1), ("1", 0)])
def test_processes_that_differ_are_refused_once_and_leave_nothing(tmp_path, outer, rank, told):
    def joined(*_):
        raise ConfigError("processes 0 and 1 differ")

    code, said = outer(rank, joined)
    assert code is ExitCode.WRONG_USAGE
    assert said.err.count("pipetrain: error: processes 0 and 1 differ\n") == told
    assert not (tmp_path / "run").exists()


def test_run_of_an_outer_launcher_that_diverged_is_told_as_such(outer):
    left = {**COMPLETED, "status": "diverged", "reason": "diverged: the loss of step 6 is nan"}
    code, said = outer("1", lambda *_: left)
    assert code is ExitCode.DIVERGED
    assert said.err == "pipetrain: error: diverged: the loss of step 6 is nan\n"


def test_only_the_first_process_of_an_outer_launcher_writes_to_the_run_directory(tmp_path, monkeypatch, capsys):
    def refuse(what, _folder):
        raise ConfigError(f"{what}: no file can be written there")

    monkeypatch.setattr("pipetrain.commands.run.one_run.check_writable", refuse)
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder = tmp_path / "run"
    folder.mkdir()
    for rank, message in (("1", "executor=simulated runs in one process"), ("0", "no file can be written there")):
        monkeypatch.setenv("RANK", rank)
        assert carried_out(folder) is ExitCode.WRONG_USAGE
        assert message in capsys.readouterr().err
        assert folder.exists() == (rank == "1")


@pytest.mark.parametrize(
    ("words", "size", "named"),
    [
        ("executor.name=simulated", "2", "executor=simulated runs in one process"),
        ("executor.name=distributed", "3", "WORLD_SIZE=3: partition.stages=2 needs 2 processes\n"),
        ("executor.name=distributed launch.max_restarts=2", "2", "launch.max_restarts=2: "),
    ],
)
def test_launcher_that_does_not_fit_the_run_is_refused(tmp_path, monkeypatch, capsys, words, size, named):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", size)
    assert carried_out(tmp_path / "run", *words.split()) is ExitCode.WRONG_USAGE
    assert capsys.readouterr().err.startswith(f"pipetrain: error: {named}")
    assert not (tmp_path / "run").exists()


def test_run_into_directory_of_live_run_is_refused(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text("")
    with locked(tmp_path):
        for resume in ("null", "auto"):
            assert carried_out(tmp_path, f"resume={resume}") is ExitCode.WRONG_USAGE
            out, err = capsys.readouterr()
            assert out == ""
            assert err.startswith(f"pipetrain: error: {tmp_path}: another run is writing here (process {os.getpid()} ")
            assert err.count("\n") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "metrics.jsonl"]


@pytest.mark.slow
def test_interrupted_and_resumed_run_tells_of_its_drain(tmp_path, monkeypatch, capsys):
    def interrupt(record):
        if record["kind"] == "interval" and record["step"] == 8:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(
        "pipetrain.runner.tracking.progress.ProgressBar.update", lambda _self, record: interrupt(record)
    )
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path / "run", "train.epochs=2")
    step = summary.read(RunDirectory(tmp_path / "run"))["steps"]
    assert f"interrupted; step {step} is saved; go on from there with: pipetrain run" in capsys.readouterr().out
    assert carried_out(tmp_path / "run", "train.epochs=2", "resume=auto") is ExitCode.COMPLETED
    assert f"the pipeline drained after step {step}, where the settings have no drain; " in capsys.readouterr().out
    resumed = summary.read(RunDirectory(tmp_path / "run"))
    monkeypatch.undo()
    drains = [each for each in records.read_records(RunDirectory(tmp_path / "run")) if each["kind"] == "drain"]
    assert [(each["step"], each["cause"]) for each in drains] == [(step, "signal")]
    assert carried_out(tmp_path / "plain", "train.epochs=2") is ExitCode.COMPLETED
    assert summary.read(RunDirectory(tmp_path / "plain"))["weights_sha256"] != resumed["weights_sha256"]
