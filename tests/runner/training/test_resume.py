"""A run that was stopped and resumed gives the bits of a run that was never stopped."""

import errno
import os
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from support import running_text, small_model
from support.cli import TINY, records, run_here, summary
from support.equal_bits import assert_same, same_resumed
from support.methods import DISTINCT, fitting
from support.one_run import CHOICES, carried_out
from support.quick_cases import every
from support.refusals import assert_refused
from support.worker_pool import distributed, job, simulated

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.stage.saved_state import Kind, TensorName, stage_tensors
from pipetrain.runner.api.one_run import newest_step
from pipetrain.runner.config.composition import settings_of
from pipetrain.runner.tracking import records as records_of_runs
from pipetrain.runner.tracking.records import metrics_of
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import locked
from pipetrain.runner.tracking.stored_settings import stored_settings
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.writer import replace_progress
from pipetrain.runner.training.resume import find_checkpoint
from pipetrain.runner.training.session import training_session

EPOCHS = {"train": {"epochs": 2}, "checkpoint": {"every_epochs": 1}}


def cases():
    """Every method with momentum, and two with AdamW, whose state is of the same kind everywhere."""
    of_each_kind = ("gpipe", "pipedream_2bw", "pipeoptim", "pipemare")
    for method in DISTINCT:
        yield pytest.param(method, "SGD", marks=[] if method in of_each_kind else [pytest.mark.slow])
    yield "pipeoptim", "AdamW"
    yield pytest.param("pipedream", "AdamW", marks=pytest.mark.slow)


@pytest.mark.parametrize(("method", "optimizer"), list(cases()))
def test_resumed_simulated_run_has_the_bits_of_one_never_stopped(tmp_path, method, optimizer):
    train = {**EPOCHS["train"], "microbatches": 1 if fitting(method, 3, 1) else 3}
    momentum = {"momentum": 0.9} if optimizer == "SGD" else {}
    chosen = {"_target_": f"torch.optim.{optimizer}", "lr": 0.05, "weight_decay": 5e-4, **momentum}
    changes = {**EPOCHS, "optimizer": chosen, "train": train}
    same_resumed(tmp_path, method, 3, **changes)


@pytest.mark.parametrize(("method", "N"), every(2, [("pipeoptim", 2), ("pipedream", 1)]))
def test_mid_epoch_resume_keeps_carried_state(tmp_path, method, N):
    changes = {**running_text.SECTIONS, "checkpoint": {"every_steps": 4}, "train": {"microbatches": N}}
    same_resumed(tmp_path, method, 3, **changes)
    half = store.checkpoints(tmp_path / "whole")[0]
    carried = contents.load_tensors(half, Kind.CARRIED)
    assert {name: [*values] for name, values in carried.items()} == {f"layers.{i}": ["0", "1"] for i in range(1, 6)}
    assert {tuple(tensor.shape) for values in carried.values() for tensor in values.values()} == {
        (running_text.ROWS, 6)
    }
    assert not any("carried" in name for name in contents.named_state(half))


@pytest.mark.parametrize(
    "optimizer", [{"momentum": 0.9}, {"_target_": "torch.optim.Adam", "lr": 0.01}], ids=["sgdm", "adam"]
)
def test_resumed_state_has_the_memory_format_of_the_weights(tmp_path, optimizer):
    changes = {**EPOCHS, "optimizer": optimizer, "train": {**EPOCHS["train"], "channels_last": True}}
    same_resumed(tmp_path, "gpipe", 2, **changes)


@pytest.mark.parametrize("section", every(2, ["statistic", "carried"]))
def test_checkpoint_before_the_first_step_has_what_was_restored(tmp_path, section):
    """As a resumed run leaves it in its own directory if the evaluation that comes first is interrupted."""
    changes = {**running_text.SECTIONS, "checkpoint": {"every_steps": 4}, "train": {"microbatches": 2}}
    simulated(job(tmp_path / "whole", "pipemare", 3, **changes))
    half = store.checkpoints(tmp_path / "whole")[0]
    (tmp_path / "again").mkdir()
    resumed = job(tmp_path / "again", "pipemare", 3, resume=half, **changes)
    with training_session(resumed, RunHooks(), lambda _: None) as session:
        session._load_weights()
    saved = {name: each for stage in session.trainer.executor.stages for name, each in stage_tensors(stage).items()}
    expected = {
        str(TensorName(Kind(section), of, key)): tensor
        for of, tensors in contents.load_tensors(half, Kind(section)).items()
        for key, tensor in tensors.items()
    }
    assert expected
    assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("first", [True, False], ids=["frozen", "trained"])
def test_resumed_run_may_train_other_weights(tmp_path, monkeypatch, first):
    def build(channels, classes):
        chain = small_model.build(channels, classes)
        chain.layers[0].weight.requires_grad_(trains[0])
        return chain

    trains = [first]
    monkeypatch.setattr(small_model, "partly_frozen", build, raising=False)
    changes = {**EPOCHS, "model": {"_target_": "support.small_model.partly_frozen"}}
    simulated(job(tmp_path / "first", "pipemare", 2, **changes))
    trains[0] = not first
    half = store.checkpoints(tmp_path / "first")[0]
    assert simulated(job(tmp_path / "second", "pipemare", 2, resume=half, **changes))["status"] == "completed"


def test_hogwild_resumed_continues_its_delays(tmp_path):
    hogwild = {"_target_": "pipetrain.engine.methods.hogwild.Hogwild", "seed": 3, "mean_delay": 1.5}
    whole = same_resumed(tmp_path, "naive_async", 3, **EPOCHS, method=hogwild)
    plain = simulated(job(tmp_path / "plain", "naive_async", 3, **EPOCHS))
    assert plain["weights_sha256"] != whole["weights_sha256"]


def test_plain_sgd_keeps_last_gradient_for_its_prediction(tmp_path):
    same_resumed(tmp_path, "pipeoptim", 3, **EPOCHS, optimizer={"momentum": 0.0})


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["NAdam", "RMSprop", "Adagrad", "nesterov"])
def test_last_gradient_for_prediction_survives_resume(tmp_path, optimizer):
    chosen = {"_target_": "torch.optim.SGD", "momentum": 0.9, "nesterov": True}
    if optimizer != "nesterov":
        chosen = {"_target_": f"torch.optim.{optimizer}"}
    same_resumed(tmp_path, "pipeoptim", 3, **EPOCHS, optimizer={"lr": 0.01, **chosen})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pipedream", "pipeoptim"])
def test_resumed_distributed_run_has_equal_bits(tmp_path, method):
    whole = simulated(job(tmp_path / "whole", method, 2, **EPOCHS))
    half = store.checkpoints(tmp_path / "whole")[0]
    assert_same(*distributed([job(tmp_path / "again", method, 2, resume=half, **EPOCHS)]), whole)


def test_checkpoint_loads_into_another_partition(tmp_path):
    whole = simulated(job(tmp_path / "whole", "gpipe", 3, **EPOCHS))
    half = store.checkpoints(tmp_path / "whole")[0]
    again = simulated(job(tmp_path / "again", "gpipe", 2, resume=half, **EPOCHS))
    assert again["final"] == pytest.approx(whole["final"], rel=1e-5)


def test_checkpoints_are_written_every_n_steps_and_at_start(tmp_path):
    simulated(job(tmp_path / "run", "pipeoptim", 2, checkpoint={"every_steps": 4, "at_start": True}))
    run = RunDirectory(tmp_path / "run")
    assert store.checkpoints(run.path) == [run.checkpoint(step) for step in (0, 4, 8, 12)]


@pytest.mark.slow
def test_command_resumes_a_run_by_name_and_automatically(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_here(whole, *TINY, "executor=simulated")
    shutil.copytree(whole, stopped)
    shutil.rmtree(stopped / "checkpoints" / "step-00000010")
    (stopped / "summary.json").unlink()
    named = run_here(tmp_path / "named", *TINY, "executor=simulated", f"resume={stopped}")
    assert "continuing" in named.stdout
    assert summary(tmp_path / "named")["weights_sha256"] == summary(whole)["weights_sha256"]
    # in its own directory: the log goes on where the checkpoint stands
    run_here(stopped, *TINY, "resume=auto")
    assert summary(stopped)["weights_sha256"] == summary(whole)["weights_sha256"]
    steps = [record["step"] for record in records(stopped) if "lr" in record]
    assert steps == list(range(1, 11))
    run_here(tmp_path / "more", *TINY, "executor=simulated", f"resume={whole}", code=2)


TWO_EPOCHS = ("train.epochs=2", "checkpoint.every_epochs=1")
SAME = ("status", "steps", "weights_sha256", "loss_sha256", "final", "best", "per_stage")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two epochs of six steps with a checkpoint after each, as the command leaves it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert carried_out(folder, *TWO_EPOCHS) == 0
    return folder


@pytest.fixture
def completed(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "day" / "run")


@pytest.fixture
def stopped(completed):
    """The same run, killed in its second epoch."""
    (completed / "summary.json").unlink()
    shutil.rmtree(completed / "checkpoints" / "step-00000012")
    return completed


@pytest.fixture
def unsummarized(completed):
    """The same run, killed between its last checkpoint and its summary."""
    (completed / "summary.json").unlink()
    return completed


def resumed(folder, *overrides, resume="auto", code=0):
    assert carried_out(folder, *TWO_EPOCHS, *overrides, f"resume={resume}") == code


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps_recorded(folder):
    """Without the starts, of which a resumed run has another."""
    return [(record["kind"], record["step"]) for record in records(folder) if record["kind"] != "start"]


def assert_same_run(folder, trained, fields=SAME):
    one, other = summary(folder), summary(trained)
    for stage in (*one["per_stage"], *other["per_stage"]):
        del stage["peak_memory_bytes"]  # which evaluating and saving may raise
    assert {field: one[field] for field in fields} == {field: other[field] for field in fields}
    assert steps_recorded(folder) == steps_recorded(trained)


BITS = tuple(field for field in SAME if field != "per_stage")
"""The measurements are of the resumed part."""


def test_auto_continues_unfinished_neighbor_with_its_metrics(stopped, trained, capsys):
    new = stopped.with_name("new")
    resumed(new)
    assert f"continuing {stopped.resolve()}/checkpoints/step-00000006" in capsys.readouterr().out
    assert_same_run(new, trained, BITS)


def test_checkpoint_in_the_folder_of_another_run_brings_none_of_its_records(stopped, trained):
    other, new = stopped.with_name("other"), stopped.with_name("new")
    kept = other / "backup" / "step-00000006"
    shutil.copytree(stopped / "checkpoints" / kept.name, kept)
    shutil.copy(stopped / "metrics.jsonl", other)
    resumed(new, resume=str(kept))
    assert_same(summary(new), summary(trained))
    assert min(step for _, step in steps_recorded(new)) > 6


def test_auto_starts_afresh_beside_a_completed_run_and_says_so(completed, capsys):
    resumed(completed.with_name("new"))
    out = capsys.readouterr().out
    assert f"resume=auto: {completed} has completed this configuration" in out
    assert "starting from the beginning" in out
    assert "continuing" not in out


@pytest.mark.parametrize("change", every(4, ["seed=9", "train.epochs=3", "optimizer.lr=0.01", "partition.stages=3"]))
def test_auto_passes_over_a_run_of_another_configuration(stopped, capsys, change):
    resumed(stopped.with_name("new"), change)
    assert (
        "resume=auto: no unfinished run of this configuration; starting from the beginning" in capsys.readouterr().out
    )


def test_auto_reads_the_configuration_of_a_run_beside_it_once(stopped, monkeypatch):
    """Each run of a sweep looks at all that ended before it."""
    config = settings_of(OmegaConf.load(stopped / "config.yaml"), CHOICES)
    other = replace(config, resume="auto", stored={**config.stored, "seed": 9})
    read, stored = [], RunDirectory.stored_config
    monkeypatch.setattr(RunDirectory, "stored_config", lambda run: read.append(run.path) or stored(run))
    for name in ("first", "second"):
        assert find_checkpoint(other, RunDirectory(stopped.with_name(name))) == (None, [])
    assert read == [stopped]


def test_auto_finishes_run_lacking_only_summary_in_place(unsummarized, trained):
    before = content(unsummarized / "checkpoints")
    resumed(unsummarized)
    assert_same_run(unsummarized, trained)
    assert content(unsummarized / "checkpoints") == before


def test_auto_takes_over_end_of_run_lacking_only_summary(unsummarized, trained):
    new = unsummarized.with_name("new")
    resumed(new)
    assert_same_run(new, trained)
    assert store.problem(RunDirectory(new).checkpoint(12)) is None


def test_run_at_target_lacking_summary_trains_no_further(tmp_path):
    target = "train.target={loss: 9}"
    assert carried_out(tmp_path / "run", *TWO_EPOCHS, target) == 0
    reached = summary(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    resumed(tmp_path / "run", target)
    again = summary(tmp_path / "run")
    assert (again["steps"], again["target"], again["loss_sha256"]) == (6, reached["target"], reached["loss_sha256"])


@pytest.mark.parametrize("step", every(2, [9, 3]))
def test_step_that_becomes_the_last_one_is_evaluated(tmp_path, step):
    every = "checkpoint.every_steps=3"
    assert carried_out(tmp_path / "run", *TWO_EPOCHS, every) == 0
    (tmp_path / "run" / "summary.json").unlink()
    for later in range(step + 3, 15, 3):
        shutil.rmtree(RunDirectory(tmp_path / "run").checkpoint(later))
    resumed(tmp_path / "run", every, f"train.max_steps={step}")
    again = summary(tmp_path / "run")
    assert (again["status"], again["steps"], len(again["per_stage"])) == ("completed", step, 2)
    (last,) = (record for record in records(tmp_path / "run") if record["kind"] == "eval" and record["step"] == step)
    assert again["final"] == metrics_of(last)
    assert last_start(tmp_path / "run")["evaluation_due"]


def last_start(folder):
    return [record for record in records(folder) if record["kind"] == "start"][-1]


def test_evaluation_that_settings_no_longer_ask_for_is_not_announced(stopped):
    folder = RunDirectory(stopped).checkpoint(6)
    replace_progress(folder, {**store.load_progress(folder), "evaluation_due": True, "metrics": {}})
    resumed(stopped, "eval.every_epochs=0")
    assert "evaluation_due" not in last_start(stopped)


def test_evaluation_that_other_stages_repeat_has_their_measurements(unsummarized):
    folder = RunDirectory(unsummarized).checkpoint(12)
    replace_progress(folder, {**store.load_progress(folder), "evaluation_due": True, "metrics": {}})
    resumed(unsummarized, "partition.stages=3")
    assert len(summary(unsummarized)["per_stage"]) == 3


def test_another_target_continues_run_that_reached_its_own(tmp_path):
    assert carried_out(tmp_path / "run", *TWO_EPOCHS, "train.target={loss: 9}") == 0
    resumed(tmp_path / "run", "train.target={loss: 0}")
    assert (summary(tmp_path / "run")["steps"], summary(tmp_path / "run")["target"]) == (12, None)


def test_run_that_reached_its_target_says_so_when_it_is_to_go_on(tmp_path, capsys):
    assert carried_out(tmp_path / "run", *TWO_EPOCHS, "train.target={loss: 9}") == 0
    resumed(tmp_path / "run", "train.target={loss: 9}", "train.epochs=3", "optimizer.lr=0.3", code=2)
    message = "it has reached train.target={'loss': 9}: set another, or null; it was completed with other settings"
    assert message in capsys.readouterr().err


def test_run_that_fails_before_it_goes_on_has_not_completed(completed, monkeypatch):
    def full(*_):
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(records_of_runs, "copy_records_until", full)
    resumed(completed, "train.epochs=3", code=1)
    assert not (completed / "summary.json").exists() or summary(completed)["status"] == "failed"


def test_auto_of_a_completed_run_says_so_and_touches_nothing(completed, capsys):
    before = content(completed)
    resumed(completed, "log.every_steps=2")
    assert (
        capsys.readouterr().out == f"resume=auto: {completed} has completed all its 12 steps; nothing is left to do\n"
    )
    assert content(completed) == before


@pytest.mark.parametrize(
    ("resume", "change", "message"),
    every(
        3,
        [
            ("auto", "optimizer.lr=0.3", r"it was completed with other settings \(optimizer.lr 0.05 -> 0.3\)$"),
            ("auto", "train.epochs=1", r"at step 12, .*at step 6; .*train.epochs"),
            ("RUN", "seed=3", r"at step 12, .*at step 12; .*train.epochs or train.max_steps$"),
        ],
    ),
)
def test_completed_run_with_other_request_is_refused(completed, capsys, resume, change, message):
    before = content(completed)
    resumed(completed, change, resume=completed if resume == "RUN" else resume, code=2)
    assert re.search(message, capsys.readouterr().err, re.MULTILINE)
    assert content(completed) == before


def test_longer_run_continues_completed_one_and_names_changes(completed, capsys):
    resumed(completed, "train.epochs=3", "optimizer.lr=0.01")
    assert ": optimizer.lr 0.05 -> 0.01, train.epochs 2 -> 3\n" in capsys.readouterr().out
    assert summary(completed)["steps"] == 18


@pytest.mark.parametrize(
    "change",
    [
        "seed=9",
        "train.batch_size=2",
        "dataset.limit=12",
        "dataset.shuffle=false",
        "dataset._target_=support.no_data",
        "model._target_=support.no_model",
        "optimizer._target_=torch.optim.Adagrad",
    ],
)
def test_fixed_setting_is_refused_before_anything_changes(stopped, change):
    """The objects of other settings need not be built: what is stored tells."""
    setting = change.partition("=")[0].removesuffix("._target_")
    before = content(stopped)
    config = settings_of(
        OmegaConf.merge(OmegaConf.load(stopped / "config.yaml"), OmegaConf.from_dotlist([change])), CHOICES
    )
    for resume in ("auto", str(stopped)):
        with pytest.raises(ConfigError, match=f"resume=.*{setting}=.*{setting}="):
            find_checkpoint(replace(config, resume=resume), RunDirectory(stopped))
    assert content(stopped) == before


def test_epoch_of_other_length_is_refused(stopped, capsys):
    resumed(stopped, "dataset.train=26", code=2)
    assert "dataset: an epoch has 7 steps now, and had 6 when" in capsys.readouterr().err


def test_optimizer_needing_other_state_is_refused(tmp_path, capsys):
    rmsprop = ("optimizer._target_=torch.optim.RMSprop", "optimizer.lr=0.001")
    assert carried_out(tmp_path / "run", *rmsprop, "train.epochs=1", "optimizer.momentum=0.0") == 0
    assert carried_out(tmp_path / "run", *rmsprop, "train.epochs=2", "resume=auto") == 2
    assert "torch.optim.RMSprop cannot continue from the state in" in capsys.readouterr().err


def damage(folder):
    part = next(folder.glob("*.safetensors"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def test_auto_takes_the_newest_whole_checkpoint_and_says_so(unsummarized, trained, capsys):
    damage(RunDirectory(unsummarized).checkpoint(12))
    resumed(unsummarized)
    out = capsys.readouterr().out
    assert re.search(r"step-00000012/\S+: damaged: .*; an earlier checkpoint takes its place\n", out)
    assert "continuing" in out
    assert "step-00000006\n" in out
    assert f"the checkpoints after step-00000006 are now in {unsummarized}/earlier-1\n" in out
    assert_same_run(unsummarized, trained, BITS)


def test_auto_does_not_restart_if_all_checkpoints_are_damaged(stopped, capsys):
    damage(RunDirectory(stopped).checkpoint(6))
    before = content(stopped)
    resumed(stopped, code=2)
    assert re.search("resume=auto: no checkpoint here is whole: .*damaged", capsys.readouterr().err)
    assert content(stopped) == before


BOMB = b"".join(
    [b"a0: &a0 [x, x]\n", *(b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 12))]
)
"""A few lines of YAML that stand for 10^11 values."""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", b"a: [1\n"),
        ("config.yaml", b"- 1\n"),
        ("config.yaml", b"\xff\x00\x80"),
        ("config.yaml", b""),
        ("config.yaml", b"[" * 100_000),
        ("config.yaml", BOMB),
        ("summary.json", b"[" * 100_000),
        ("summary.json", b'{"status": "comp'),
        ("summary.json", b"{}"),
        ("summary.json", b"[1]"),
    ],
)
def test_broken_file_of_another_run_does_not_matter(stopped, name, text):
    (stopped / name).write_bytes(text)
    config = settings_of(OmegaConf.load(stopped / ".hydra" / "config.yaml"), CHOICES)
    new = RunDirectory(stopped.with_name("new"))
    other, _ = find_checkpoint(replace(config, resume="auto", stored={**config.stored, "seed": 9}), new)
    assert other is None
    same, _ = find_checkpoint(replace(config, resume="auto"), new)
    assert (same is None) == (name == "config.yaml")


def test_pipe_in_place_of_lock_is_not_waited_for(stopped, trained, capsys):
    os.mkfifo(stopped / ".lock")
    new = stopped.with_name("new")
    resumed(new)
    assert_same_run(new, trained, BITS)
    resumed(stopped, code=2)
    said = f"{stopped}/.lock: is not a regular file; remove it"
    assert capsys.readouterr().err == f"pipetrain: error: {said}\n"


def test_configuration_of_other_run_is_not_expanded(stopped):
    (stopped / "config.yaml").write_bytes(BOMB)
    assert_refused(r"config.yaml: damaged: it has YAML aliases", stored_settings, RunDirectory(stopped), calls=())


def test_live_run_is_not_resumed_by_another(stopped, capsys):
    new = stopped.with_name("new")
    with locked(stopped):
        for resume in ("auto", str(stopped), str(RunDirectory(stopped).checkpoint(6))):
            resumed(new, resume=resume, code=2)
            assert re.search(f"resume=.*: .*run is still running \\(process {os.getpid()} on ", capsys.readouterr().err)
    assert not new.exists()
    resumed(new, resume=stopped)


@pytest.mark.parametrize(("around", "step"), every(2, [("stopped", 6), ("completed", 12)]))
def test_checkpoint_elsewhere_in_a_run_directory_is_not_of_that_run(request, around, step):
    run = request.getfixturevalue(around)
    moved = run / "saved" / RunDirectory(run).checkpoint(step).name
    shutil.copytree(RunDirectory(run).checkpoint(step), moved)
    with locked(run):
        resumed(run.with_name("new"), resume=moved)


@pytest.mark.parametrize("end", every(2, ["disk", "signal"]))
def test_run_without_own_checkpoint_names_the_one_that_it_resumed(stopped, monkeypatch, capsys, end):
    def simulate(_job, _show, _interruption):
        if end == "signal":
            raise KeyboardInterrupt
        raise RuntimeError("write failed") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_simulated", simulate)
    new, source = stopped.with_name("new"), RunDirectory(stopped).checkpoint(6)
    monkeypatch.chdir(stopped.parent)
    if end == "disk":
        resumed(new, resume=stopped, code=1)
    else:
        with pytest.raises(KeyboardInterrupt):
            resumed(new, resume=stopped)
    command = "".join(capsys.readouterr()).rpartition("go on ")[2]
    assert f"hydra.run.dir=new resume={source.relative_to(stopped.parent)}\n" in command


def test_copy_of_a_checkpoint_may_have_another_name(stopped, tmp_path):
    folder = shutil.copytree(RunDirectory(stopped).checkpoint(6), tmp_path / "best")
    assert newest_step(SimpleNamespace(run=RunDirectory(tmp_path / "new"), resume=folder)) == 6
    resumed(tmp_path / "new", resume=folder)


def test_lone_checkpoint_is_compared_by_its_own_configuration(stopped, tmp_path, capsys):
    folder = tmp_path / "elsewhere" / "checkpoints" / "step-00000006"
    shutil.copytree(RunDirectory(stopped).checkpoint(6), folder)
    resumed(tmp_path / "new", "optimizer.lr=0.01", resume=folder)
    assert "elsewhere: optimizer.lr 0.05 -> 0.01\n" in capsys.readouterr().out
    resumed(tmp_path / "other", "train.batch_size=2", resume=folder, code=2)
    assert "was trained with train.batch_size=4, but this run has train.batch_size=2" in capsys.readouterr().err


def test_partial_checkpoint_that_lacks_only_its_name_is_resumed(stopped, trained):
    whole = RunDirectory(trained).checkpoint(12)
    shutil.copytree(whole, RunDirectory(stopped).checkpoints / "step-00000012.partial")
    resumed(stopped)
    assert_same_run(stopped, trained)
