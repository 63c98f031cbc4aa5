"""The command line end to end."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from support.cli import TINY, pipetrain_here, records, run, run_here, summary
from support.processes import python

from pipetrain import __version__, cli
from pipetrain.engine.errors import ExitCode
from pipetrain.engine.processes import ENDING
from pipetrain.runner.config.composition import composed
from pipetrain.runner.launch import process_exit


def test_run_in_two_processes_writes_all_its_files(tmp_path):
    folder = tmp_path / "run"
    done = run(folder, *TINY)
    assert "stage  layers" in done.stdout
    assert f"writing to {folder}" in done.stdout
    assert "epoch 2/2" in done.stdout
    assert done.stderr == ""
    for name in ("config.yaml", "plan.json", "metrics.jsonl", "summary.json", ".hydra/overrides.yaml", "tensorboard"):
        assert (folder / name).exists(), name
    found = summary(folder)
    assert found["status"] == "completed"
    assert (found["model"], found["dataset"], found["method"]) == ("lenet5", "fashion_mnist_mini", "pipeoptim")
    assert (found["schedule"], found["executor"], found["stages"]) == ("1f1b", "distributed", 2)
    assert (found["steps"], found["epochs"]) == (10, 2)
    assert {"loss", "top1", "top5"} <= found["final"].keys()
    assert found["best_step"].keys() == found["best_epoch"].keys() == found["final"].keys()
    assert found["train_s"] + found["eval_s"] + found["checkpoint_s"] < found["wall_s"]
    assert found["samples_per_second"] > 0
    assert (found["choices"]["optimizer"], found["device"], found["seed"]) == ("sgdm", "cpu", 0)
    assert "model=lenet5" in found["command"]
    written = records(folder)
    epoch = ["interval"] * 5 + ["epoch", "eval"]
    assert [record["kind"] for record in written] == ["start", *epoch, *epoch]
    assert not any(isinstance(value, list | dict) for record in written for value in record.values())
    assert [stage["forward_staleness"] for stage in found["per_stage"]] == [[1], [0]]
    assert [stage["weight_versions_max"] for stage in found["per_stage"]] == [2, 1]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-00000005", "step-00000010"]
    assert sum(stage["parameters"] for stage in json.loads((folder / "plan.json").read_text())["stages"]) == 61706


def carried_out(folder, *overrides, code=0):
    """A simulated run in this process, which has imported torch already."""
    words = [f"hydra.run.dir={folder}", *TINY, "executor=simulated", "threads=1", *overrides]
    assert cli.carry_out(["run", *words]) == code


@pytest.mark.slow
def test_tensorboard_reads_what_a_run_writes(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    carried_out(tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {"train/loss", "train/lr", "eval/top1", "throughput/simulator_samples_per_second"} <= set(tags)
    assert {"weight_versions/stage0", "forward_staleness/stage0", "idle_share/stage1", "memory_MB/stage0"} <= set(tags)
    assert {"run/predicted_samples_per_second", "run/wall_s", "time/wall_s"} <= set(tags)
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 11))
    assert [event.step for event in events.Scalars("eval/top1")] == [5, 10]


@pytest.mark.parametrize("number", ENDING)
def test_signal_after_command_keeps_exit_code(monkeypatch, main, number):
    monkeypatch.setattr(cli, "carry_out", lambda *_: ExitCode.DIVERGED)
    monkeypatch.setattr(process_exit, "exit_despite_user_threads", lambda _code: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == ExitCode.DIVERGED
    assert signal.getsignal(number) is signal.SIG_IGN  # which the interpreter, other than a handler, keeps to its end


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]
)
def test_signal_before_a_run_begins_is_told_in_one_line(monkeypatch, capsys, main, number, code):
    monkeypatch.setattr(cli, "_parsers", lambda _program: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert capsys.readouterr().err == f"pipetrain: interrupted by {signal.Signals(number).name}\n"


def test_debug_flag_shows_the_traceback(tmp_path):
    assert "Traceback" in run_here(tmp_path / "run", "threads=0", "debug=true", code=2).stderr


@pytest.mark.slow
def test_stored_run_is_evaluated_and_exported(tmp_path):
    folder = tmp_path / "run"
    run_here(folder, *TINY, "executor=simulated", "partition.stages=3", "checkpoint.at_start=true")
    done = pipetrain_here("eval", str(folder), "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["metrics"] == pytest.approx(summary(folder)["final"], rel=1e-5)
    first = json.loads(pipetrain_here("eval", str(folder), "--step", "5", "--json", cwd=tmp_path).stdout)
    assert first["step"] == 5
    assert pipetrain_here("eval", str(folder), "--step", "6", cwd=tmp_path).returncode == 2
    assert pipetrain_here("export", str(folder), "-o", "w.pt", cwd=tmp_path).returncode == 0
    assert pipetrain_here("export", str(folder), "--step", "0", "-o", "w0.pt", cwd=tmp_path).returncode == 0
    from pipetrain.zoo.models.small_images import lenet5

    torch.manual_seed(0)
    module = lenet5(channels=1, classes=10, size=(28, 28)).module
    start = torch.load(tmp_path / "w0.pt")
    assert all(torch.equal(start[name], value) for name, value in module.state_dict().items())
    module.load_state_dict(torch.load(tmp_path / "w.pt"))


@pytest.mark.slow
def test_sweep_goes_on_after_a_run_that_fails(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    sweep = ["hydra.sweep.dir=sweep", "executor=simulated", "threads=1", *TINY, "train.epochs=1"]
    assert cli.carry_out(["run", "--multirun", *sweep, "method=pipeoptim,gpipe", "optimizer.lr=0.01,1e30"]) == 3
    shown = capfd.readouterr().out
    folders = ["0_pipeoptim_lr=0.01", "1_pipeoptim_lr=1e+30", "2_gpipe_lr=0.01", "3_gpipe_lr=1e+30"]
    statuses = [summary(tmp_path / "sweep" / name)["status"] for name in folders]
    assert statuses == ["completed", "diverged", "completed", "diverged"]
    assert "\nrun 2 of 4: method=pipeoptim optimizer.lr=1e+30\n" in shown
    assert "HYDRA" not in shown
    table = shown[shown.index("final top1") :]
    assert re.search(r"^gpipe lr=0.01 .* 1$", table, re.MULTILINE)
    assert re.search(r"^gpipe lr=1e\+30 .* 1 diverged$", table, re.MULTILINE)
    assert table.endswith("\nnext: pipetrain report runs sweep -o comparison, tensorboard --logdir sweep\n")


@pytest.mark.slow
def test_run_that_a_sweep_refuses_is_a_row_of_its_table(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["hydra.sweep.dir=sweep", "executor=simulated", *TINY, "device=cpu", "train.max_steps=1"]
    assert cli.carry_out(["run", "--multirun", *words, "method=gpipe,pipedream_2bw", "eval.every_epochs=0"]) == 2
    out = capfd.readouterr().out
    assert re.search(r"^pipedream_2bw .* 1 refused$", out, re.MULTILINE)
    assert re.search(r"^gpipe .* 1$", out, re.MULTILINE)
    assert [path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()] == ["0_gpipe"]
    assert cli.carry_out(["run", *words, "method=gpipe", "resume=sweep/0_gpipe", "train.max_steps=2"]) == 0


DIVERGING = ("optimizer.lr=1e20", "partition.stages=3")


def test_divergence_names_the_step_and_is_exit_code_3(tmp_path, capsys):
    carried_out(tmp_path / "run", *DIVERGING, code=3)
    check_divergence(tmp_path / "run", capsys.readouterr().err)


@pytest.mark.slow
def test_distributed_divergence_names_step_and_exits_with_3(tmp_path):
    check_divergence(tmp_path / "run", run_here(tmp_path / "run", *TINY, *DIVERGING, code=3).stderr)


def check_divergence(folder, error):
    found = summary(folder)
    assert found["status"] == "diverged"
    assert re.fullmatch(r"pipetrain: error: diverged: the loss of step \d+ is (nan|inf)\n", error)
    assert f"step {found['diverged_at_step']} " in error
    assert found["steps"] == found["diverged_at_step"]
    assert all("weight_versions_max" in stage for stage in found["per_stage"])


def test_run_ends_when_its_target_is_reached(tmp_path):
    folder = tmp_path / "run"
    carried_out(folder, "train.epochs=5", "train.target={loss: 5.0}")
    found = summary(folder)
    assert found["steps"] == 5
    assert (found["target"]["step"], found["target"]["epoch"]) == (5, 1)


def test_max_steps_ends_a_run_within_an_epoch(tmp_path):
    folder = tmp_path / "run"
    carried_out(folder, "train.max_steps=7")
    assert summary(folder)["steps"] == 7
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-00000005", "step-00000007"]


def test_timeline_settings_may_surround_an_option(tmp_path, capsys):
    words = ["method=gpipe", "--minibatches", "2", "partition.stages=3", "-o", str(tmp_path / "out")]
    assert cli.carry_out(["timeline", *words]) == 0
    assert "method=gpipe, schedule=gpipe, D = 3, N = 1" in capsys.readouterr().out


@pytest.mark.parametrize("setting", ["hydra.run.dir=file/run", "hydra.run.dir=${new_folder:file/run}"])
def test_impossible_run_directory_is_refused_in_one_line(tmp_path, monkeypatch, capsys, setting):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pipetrain"])
    assert cli.carry_out(["run", setting]) == 2
    shown = capsys.readouterr().err
    assert re.search(r"file.*: (Not a directory|File exists); .*hydra.run.dir", shown), shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("trian", "choose from run, list, eval, .*completion"),
        ("train", r"did you mean run\?"),
        ("predict", r"mean plan\?$"),
    ],
)
def test_unknown_command_is_told_the_known_ones(capsys, word, named):
    assert cli.carry_out([word]) == 2
    assert re.fullmatch(rf"pipetrain: error: {word}: .*{named}\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        ("method=gpipe", "GPipe"),
        ("method=pipedream_flush", "OneFOneBFlush"),
        ("method=gpipe schedule=1f1b_flush", "OneFOneBFlush"),
        ("experiment=demo", "OneFOneB"),
        ("experiment=demo method=gpipe", "GPipe"),
    ],
)
def test_method_brings_its_schedule_and_an_explicit_one_wins(words, schedule):
    assert composed(words.split()).phases[0].schedule.path.endswith(f".{schedule}")


@pytest.mark.slow
def test_earlier_run_is_set_aside_only_by_a_run_that_starts(tmp_path):
    def files(folder):
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    folder = tmp_path / "run"
    run_here(folder, *TINY, "executor=simulated")
    before = files(folder)
    run_here(folder, *TINY, "method=gpipe", "schedule=1f1b", code=2)
    assert files(folder) == before
    run_here(folder, *TINY, "executor=simulated", "train.epochs=1")
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000005"]
    assert (folder / "earlier-1" / "summary.json").read_bytes() == before[Path("summary.json")]
    assert (folder / "earlier-1" / "checkpoints" / "step-00000010").is_dir()


# -- processes of their own -------------------------------------------------------------------------------------------


def test_configuration_is_shown_or_refused_without_torch(tmp_path):
    code = (
        "import sys, pipetrain.cli as c; c.carry_out(['run', '--cfg', 'job']); "
        "c.carry_out(['run', 'optimizer.clip_norm=-1']); sys.exit('torch' in sys.modules)"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "_target_: pipetrain.engine.methods.pipeoptim.PipeOptim" in done.stdout
    assert done.stderr.startswith("pipetrain: error: optimizer.clip_norm=-1: ")


def test_help_and_version_need_neither_torch_nor_hydra(tmp_path):
    code = (
        "import sys, contextlib, pipetrain.cli as c\n"
        "for word in ('--version', '--help'):\n"
        "    with contextlib.suppress(SystemExit): c.carry_out([word])\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'numpy', 'matplotlib', 'hydra')))"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"pipetrain {__version__}\n")
    for command in ("run", "list", "eval", "export", "timeline", "report", "doctor"):
        assert re.search(rf"^    {command}\s+\w+", done.stdout, re.MULTILINE), command


def test_process_of_outer_launcher_exits_without_abort(tmp_path):
    code = (
        "import atexit, sys; from pipetrain import cli; atexit.register(print, 'rites'); "
        "sys.argv = ['pipetrain', 'list', 'methods']; cli.main()"
    )
    alone, one_of_many = (python(code, cwd=tmp_path, **more) for more in ({}, {"RANK": "0"}))
    assert (alone.returncode, one_of_many.returncode) == (0, 0)
    assert alone.stdout == f"{one_of_many.stdout}rites\n"


def test_interrupt_during_exec_of_text_keeps_the_exit_code(tmp_path):
    # as where an import defines a dataclass, whose methods Python compiles from text
    code = (
        "import sys\n"
        "from pipetrain import cli\n"
        "from pipetrain.runner.launch import process_exit\n"  # imports nothing later
        "cli.carry_out = lambda *_: exec('raise KeyboardInterrupt')\n"
        "sys.argv = ['pipetrain', 'list']\n"
        "cli.main()\n"
    )
    done = python(code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (ExitCode.INTERRUPTED, "pipetrain: interrupted\n")
