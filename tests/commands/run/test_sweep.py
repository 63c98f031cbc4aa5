"""How a sweep ends, with what exit code and table, and what its runs are called."""

import os
import re
import signal

import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from support.waiting import eventually

from pipetrain import cli
from pipetrain.commands.run import one_run, sweep
from pipetrain.commands.run.sweep import constant, number_of_runs
from pipetrain.engine.errors import ExitCode
from pipetrain.runner.config.composition import folder_name
from pipetrain.runner.tracking.run_directory import RunDirectory

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
WORDS = ["run", "--multirun", "hydra.sweep.dir=sweep", "train.epochs=0,-1"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sweep"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "folders"),
    [
        (("train.epochs=sort(0,-1)",), ("0_epochs=-1", "1_epochs=0")),
        (("train.epochs=range(-1,1)",), ("0_epochs=-1", "1_epochs=0")),
        (("executor=glob(*)", "train.epochs=0"), ("0_executor=distributed", "1_executor=simulated")),
    ],
    ids=["sort", "range", "glob"],
)
def test_every_sweep_form_returns_exit_code_of_its_runs(words, folders, monkeypatch, capfd):
    taken = []
    run = one_run.run

    def noted(config, choices, folder, *others):
        taken.append(folder.name)
        return run(config, choices, folder, *others)

    monkeypatch.setattr(one_run, "run", noted)
    assert cli.carry_out([*WORDS[:3], *words]) is ExitCode.WRONG_USAGE
    assert tuple(taken) == folders
    said = capfd.readouterr()
    assert re.findall(r"^run \d of \d", said.out, re.MULTILINE) == ["run 1 of 2", "run 2 of 2"]
    assert "Warning" not in said.err


def test_sweep_without_runs_is_refused(capfd):
    assert cli.carry_out([*WORDS[:3], "method=glob(zz*)"]) is ExitCode.WRONG_USAGE
    assert capfd.readouterr().err.startswith("pipetrain: error: --multirun method=glob(zz*): no run; a glob or range")


@pytest.mark.slow
def test_sweep_over_presets_that_sweep_by_themselves_is_refused(tmp_path, capfd):
    choices = tmp_path / "back\\slash, it's mine"
    (choices / "experiment").mkdir(parents=True)
    for name, seeds in (("three", "0,1,2"), ("two", "0,1")):
        text = f"# @package _global_\nhydra: {{sweeper: {{params: {{seed: '{seeds}'}}}}}}\n"
        (choices / "experiment" / f"{name}.yaml").write_text(text)
    words = [*WORDS[:3], "--config-dir", str(choices), "experiment=three,two"]
    for given in ((), ("optimizer.lr=0.1",)):
        assert cli.carry_out([*words, *given]) is ExitCode.WRONG_USAGE
        assert "experiment=three itself sweeps seed=0,1,2" in capfd.readouterr().err
    assert cli.carry_out([*words, "seed=0", "train.epochs=-1"]) is ExitCode.WRONG_USAGE
    assert "run 2 of 2" in capfd.readouterr().out


def test_format_on_the_command_line_takes_the_place_of_those_that_a_preset_sweeps(tmp_path, capfd):
    (tmp_path / "experiment").mkdir()
    params = "{messages.activations: '{name:int4},{name:tah,tile:32}', messages.gradients.name: 'int4,fp8'}"
    text = f"# @package _global_\nhydra: {{sweeper: {{params: {params}}}}}\n"
    (tmp_path / "experiment" / "formats.yaml").write_text(text)
    words = ["--config-dir", str(tmp_path), "experiment=formats", "train.epochs=0"]
    assert cli.carry_out([*WORDS[:3], *words, "messages.activations=bf16,int8"]) is ExitCode.WRONG_USAGE
    begun = re.findall(r"^run \d of \d: .*", capfd.readouterr().out, re.MULTILINE)
    assert [set(line.split()[4:]) for line in begun] == [
        {f"messages.activations={forward}", f"messages.gradients={back}"}
        for back in ("int4", "fp8")
        for forward in ("bf16", "int8")
    ]
    assert cli.carry_out([*WORDS[:3], *words, "messages.gradients={name:int8}"]) is ExitCode.WRONG_USAGE
    assert re.findall(r"^run \d of (\d): ", capfd.readouterr().out, re.MULTILINE) == ["2", "2"]


@pytest.fixture
def launcher():
    """The class that Hydra makes its own launcher of; it imports its plugins anew."""
    return Plugins.instance().class_name_to_class[BASIC]


@pytest.fixture
def apart(launcher, monkeypatch):
    """Takes Hydra's own launcher for one that starts processes; what it does instead of that is set."""
    monkeypatch.setattr(sweep, "_LOCAL", (BASIC,))
    return lambda launch: monkeypatch.setattr(launcher, "launch", launch)


@pytest.mark.slow
def test_sweep_by_launcher_in_other_processes_ends_alike(folder, launcher, monkeypatch, capfd):
    launch = launcher.launch

    def launch_apart(launcher, overrides, initial_job_idx):
        child = os.fork()
        if child == 0:
            try:
                launch(launcher, overrides, initial_job_idx)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=None) for _ in overrides]

    monkeypatch.setattr(launcher, "launch", launch_apart)
    assert cli.carry_out(WORDS) is ExitCode.WRONG_USAGE
    assert len(re.findall(r"^epochs=\S+ .* 1 refused$", capfd.readouterr().out, re.MULTILINE)) == 2
    assert not (folder / ".ends").exists()


def test_sweep_that_ctrl_c_ends_shows_the_runs_that_there_are(folder, monkeypatch, capfd):
    run = one_run.run

    def interrupted(config, *more):
        if config.train.epochs == -1:
            raise KeyboardInterrupt
        return run(config, *more)

    monkeypatch.setattr(one_run, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cli.carry_out(WORDS)
    out = capfd.readouterr().out
    assert re.search(r" 1 refused$", out, re.MULTILINE)
    assert "next: " not in out, "no run has left anything to look at"
    assert not (folder / ".ends").exists()
    assert sweep.current() is None


def test_signal_to_a_sweep_waits_for_its_runs_in_other_processes(folder, apart, capfd):
    waited = []

    def launch(_launcher, overrides, **_more):
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: sweep.stopped_by(folder) == "SIGTERM")
        run = RunDirectory(folder / "0_epochs=0")
        run.checkpoint(7).mkdir(parents=True)
        run.config.write_text("{}")
        run.summary.write_text('{"status": "interrupted", "reason": "a signal after step 7"}')
        waited.extend(overrides)
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=None) for _ in overrides]

    apart(launch)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        cli.carry_out(WORDS)
    assert len(waited) == 2
    out = capfd.readouterr().out
    assert "interrupted: each run finishes" in out
    assert "0_epochs=0: step 7 is saved\ngo on from there with the same command and hydra.sweep.dir=" in out
    assert not (folder / ".ends").exists()


def test_signal_that_a_run_in_another_process_got_ends_the_sweep(folder, apart):
    def launch(*_given, **_more):
        sweep.stop(folder, "SIGUSR1")
        raise ValueError("a search cannot use a run without a result")

    apart(launch)
    with pytest.raises(KeyboardInterrupt, match="SIGUSR1"):
        cli.carry_out(WORDS)


def test_launcher_that_loses_a_process_is_one_line(apart, capfd):
    def launch(*_given, **_more):
        raise RuntimeError("a worker\nwas terminated")

    apart(launch)
    assert cli.carry_out(WORDS) is ExitCode.WRONG_USAGE, "no run has begun"
    err = capfd.readouterr().err
    assert err.startswith("pipetrain: error: hydra/launcher: RuntimeError: a worker was terminated")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_sweep_interrupted_before_first_run_has_no_table(monkeypatch, capfd):
    def interrupted(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr(one_run, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cli.carry_out(WORDS)
    assert "next:" not in capfd.readouterr().out


def test_killed_sweep_outcomes_do_not_reach_the_next(folder):
    (folder / ".ends").mkdir(parents=True)
    (folder / ".ends" / "-1.json").write_text('{"path": "x", "code": 1, "settings": {}, "asked": []}')
    assert cli.carry_out(WORDS) is ExitCode.WRONG_USAGE


@pytest.mark.parametrize(
    ("differing", "name"),
    [
        ("method=pipedream optimizer.lr=0.1 seed=0", "3_pipedream_lr=0.1_seed=0"),
        ("executor=simulated method=gpipe", "3_gpipe_executor=simulated"),
        ("partition.ppv=[1,2] +model.width=32", "3_ppv=-1-2-_width=32"),
        ("dataset.root=/data/a", "3_root=-data-a"),
        ("", "3"),
        ("method._target_=mylib.Nesterov seed=0", "3_Nesterov_seed=0"),
        ("dataset.root=" + "a/very/long/path" * 8, "3"),
    ],
)
def test_run_folder_is_named_by_differences_in_safe_characters(differing, name):
    assert folder_name(3, differing) == name


def test_settings_equal_in_all_runs_are_not_in_names():
    words = ["method=gpipe,pipedream", "model=lenet5", "+model.width=32", "optimizer.lr=choice(0.1,0.2)", "seed=7"]
    assert constant(words, {}) == ["model", "model.width", "seed"]
    assert constant(["method=gpipe"], {"method": "gpipe,lwp", "seed": "0,1", "train.epochs": 3}) == [
        "method",
        "train.epochs",
    ]


@pytest.mark.parametrize(
    ("words", "swept", "count"),
    [
        (["method=gpipe,lwp", "seed=0,1,2", "model=lenet5"], {}, 6),
        (["seed=5"], {"method": "gpipe,lwp", "seed": "0,1,2"}, 2),
        (["seed=range(0,4)"], {}, 4),
        (["executor=glob(*)", "seed=0,1"], {}, 4),
        (["optimizer.lr=interval(0,1)"], {}, None),
    ],
)
def test_runs_of_a_sweep_are_counted(words, swept, count):
    assert number_of_runs(words, swept) == count


@pytest.mark.parametrize(
    ("words", "rank", "message"),
    [
        (["hydra.job.chdir=true"], None, "hydra.job.chdir=true: "),
        ([], "1", "RANK is set: an outer launcher starts the processes of one run, not of --multirun"),
    ],
)
def test_sweep_that_cannot_keep_its_folder_is_refused(tmp_path, monkeypatch, capsys, words, rank, message):
    monkeypatch.chdir(tmp_path)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert cli.carry_out(["run", "--multirun", "seed=0,1", *words]) == ExitCode.WRONG_USAGE
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
