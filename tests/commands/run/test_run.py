"""The words and flags of `pipetrain run`."""

import json

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from support.cli import TINY, pipetrain, refused, run_here, summary
from support.equal_bits import bits

from pipetrain import cli
from pipetrain.runner.config.choices import papers_folder
from pipetrain.runner.config.composition import overrides_of


def shown(capsys, *words, code=0):
    assert cli.carry_out(["run", *words]) == code
    out, error = capsys.readouterr()
    return out if code == 0 else error


def test_help_shows_every_setting_and_the_choices_of_every_group(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(capsys, "--help")
    for line in ("train.batch_size=64", "Samples per minibatch", "pipemare_w, pipeoptim", "optimizer.momentum=0.9"):
        assert line in text


def test_help_shows_what_a_preset_changes(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    text = shown(capsys, "experiment=comparison", "--help")
    changed = text.partition("experiment=comparison, in place of those above")[2].partition("Examples")[0]
    assert [line.split()[0] for line in changed.splitlines() if line.startswith("    ")] == [
        "partition.ppv=[1,", "optimizer.lr=0.02", "train.epochs=10", "train.microbatches=4", "threads=1",
    ]  # fmt: skip
    assert "diverges with stale weights" in changed


@pytest.mark.parametrize(
    "words", ["--cfg job seed=3 method=gpipe", "seed=3 --cfg=job method=gpipe", "seed=3 method=gpipe -c job"]
)
def test_flags_may_stand_anywhere_among_the_settings(capsys, words):
    text = shown(capsys, *words.split())
    assert "\nseed: 3\n" in text
    assert "_target_: pipetrain.engine.methods.synchronous.Synchronous" in text


@pytest.mark.parametrize("flag", [["--resolve"], ["--package", "train"]])
def test_flag_of_the_printed_configuration_alone_is_refused(capsys, flag):
    assert f"{' '.join(flag)} requires --cfg" in shown(capsys, *flag, code=2)


def test_choices_of_a_users_folder_are_taken_and_shown(capsys, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 7\n")
    folder = ["--config-dir", str(tmp_path)]
    assert "\nseed: 7\n" in shown(capsys, "experiment=mine", *folder, "--cfg", "job")
    assert "comparison, demo, multi30k, mine" in " ".join(shown(capsys, *folder, "--help").split())


def test_preset_of_a_paper_is_taken_from_its_folder_and_shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    words = ["experiment=zhang/table2_lenet5", "--config-dir", str(papers_folder())]
    assert "\n  max_steps: 30000\n" in shown(capsys, *words, "--cfg", "job")
    text = shown(capsys, *words, "--help")
    assert "comparison, demo, multi30k, " in text
    assert "zhang/... (" in " ".join(text.split())
    assert " Here: ppv." in text
    changed = text.partition("experiment=zhang/table2_lenet5, in place of those above")[2]
    assert "train.max_steps=30000" in changed.partition("Examples")[0]


@pytest.mark.parametrize(
    ("name", "meant"), [("zhang/table2_lenet5", "zhang/table2_lenet5"), ("map/transfomer", "map/transformer")]
)
def test_preset_of_a_paper_without_its_folder_is_answered_with_it(capsys, monkeypatch, name, meant):
    monkeypatch.chdir(papers_folder().parents[1])
    asked = f"did you mean --config-dir papers/conf experiment={meant}?"
    assert asked in shown(capsys, f"experiment={name}", "--cfg", "job", code=2)


@pytest.mark.slow
def test_run_that_plans_for_itself_goes_on_with_its_cuts(tmp_path):
    words = [*TINY, "threads=1", "partition=auto", "executor=simulated", "method=gpipe", "train.epochs=1"]
    layers = [("conv1", 1), ("pool1", 1), ("conv2", 1), ("pool2", 1), ("fc1", 9), ("fc2", 1), ("fc3", 1)]
    measured = {"forward_s": 0.0, "output_bytes": 1, "weight_bytes": 1, "activation_bytes": 1}
    profile = {"bytes_per_s": 1e9, "layers": [{"label": name, "backward_s": time, **measured} for name, time in layers]}
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    words.append(f"profile={tmp_path / 'profile.json'}")
    done = run_here(tmp_path / "run", *words, "partition.stages=3")
    assert "partition=auto: 3 stages, cut before layers 4, 5" in done.stdout
    (tmp_path / "profile.json").unlink()
    again = run_here(tmp_path / "run", *words, "partition.stages=3", "train.epochs=2", "resume=auto")
    assert "partition=auto: keeps the cuts of" in again.stdout
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (plan["rule"], [stage["first"] for stage in plan["stages"]]) == ("auto", [0, 4, 5])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-cn", "mine"), "--config-name mine: pipetrain has one configuration"),
        (("--config-path=mine",), "--config-path mine: pipetrain has one configuration"),
        (("--experimental-rerun", "x.pickle"), "--experimental-rerun x.pickle: not supported; resume=RUN"),
        (("--cfg", "job", "-p", "hydra"), "--cfg job --package hydra: the settings of Hydra are in --cfg hydra"),
        (("~lr_schedule",), "~lr_schedule: "),
    ],
)
def test_unsupported_hydra_options_are_refused(tmp_path, words, message):
    refused("run", *words, cwd=tmp_path, message=f"pipetrain: error: {message}")


def test_configuration_is_shown_without_making_a_folder(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "dir: outputs/" in shown(capsys, "--cfg", "hydra", "--resolve")
    assert list(tmp_path.iterdir()) == []


def test_setting_that_is_given_twice_is_told(capsys):
    assert cli.carry_out(["run", "--cfg", "job", "-p", "train", "train.epochs=3", "train.epochs=4"]) == 0
    out, err = capsys.readouterr()
    assert "epochs: 4\n" in out
    assert err == "pipetrain: warning: train.epochs=3 train.epochs=4: given twice; the last counts\n"


def test_mapping_of_a_preset_is_replaced_without_a_warning(capsys):
    choices = ["--config-dir", str(papers_folder())]
    words = ["experiment=pipeoptim/table6_resnet101", "train.target=null", "++train.target={loss: 0.5}"]
    [[of_a_sweep]] = BasicSweeper.split_arguments(overrides_of(words), None)
    assert of_a_sweep == [*words[:-1], "++train.target={loss:0.5}"]
    assert cli.carry_out(["run", "--cfg", "job", "-p", "train", *choices, *words]) == 0
    out, err = capsys.readouterr()
    assert "target:\n  loss: 0.5\n" in out
    assert "given twice" not in err


@pytest.mark.slow
def test_interpreter_without_asserts_gives_the_same_bits(tmp_path):
    words = (*TINY, "partition.stages=2", "method=pipedream", "train.max_steps=2", "threads=1", "eval.every_epochs=0")
    run_here(tmp_path / "plain", *words)
    done = pipetrain("run", f"hydra.run.dir={tmp_path / 'without'}", *words, cwd=tmp_path, PYTHONOPTIMIZE="1")
    assert done.returncode == 0, done.stderr
    assert bits(summary(tmp_path / "without")) == bits(summary(tmp_path / "plain"))
