"""Runs with `train.ema`: both executors, resumed, evaluated and exported."""

import pytest
import torch
from support.cli import pipetrain, summary
from support.equal_bits import TIED, bits, both_ways, replicated, same_resumed
from support.methods import DISTINCT, fitting
from support.one_run import carried_out
from support.worker_pool import distributed, job, simulated

from pipetrain import cli
from pipetrain.commands.evaluate import evaluation_lines
from pipetrain.engine.errors import ExitCode
from pipetrain.engine.stage.saved_state import Kind
from pipetrain.runner.config.choices import choices_of
from pipetrain.runner.tracking.stored_settings import parse_overrides
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.finished.evaluate import evaluate
from pipetrain.runner.training.finished.export import export

EMA = 0.7


def averaged(folder, method, stages, train=(), **changes):
    return job(folder, method, stages, train={"ema": EMA, **dict(train)}, **changes)


def averages_of(folder):
    loaded = contents.load_tensors(store.newest_undamaged(folder), Kind.AVERAGE)
    return {name: values[""] for name, values in loaded.items()}


def assert_equal_averages(one, other):
    ours, theirs = averages_of(one), averages_of(other)
    assert ours
    assert ours.keys() == theirs.keys()
    for name, average in ours.items():
        assert torch.equal(average, theirs[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("method", DISTINCT)
def test_averages_change_evaluations_and_no_trained_bit(tmp_path, method):
    train = {"microbatches": 1 if fitting(method, 3, 1) else 3}
    plain = simulated(job(tmp_path / "plain", method, 3, train=train))
    ours = simulated(averaged(tmp_path / "averaged", method, 3, train))
    assert bits(ours) == bits(plain)
    assert ours["final"]["loss"] != plain["final"]["loss"]
    for with_average, without in zip(ours["per_stage"], plain["per_stage"], strict=True):
        assert with_average["average_bytes"] > 0
        for field in ("weight_versions_max", "weight_bytes_peak"):
            assert with_average[field] == without[field]


@pytest.mark.slow
def test_averages_have_equal_bits_in_both_executors(tmp_path):
    method, stages, changes = replicated((2, 1), "pipeoptim", 2)
    cases = {
        "plain": ("pipeoptim", {}),
        "tied": ("gpipe", {**TIED, "train": {"microbatches": 2}}),
        "replicas": (method, changes),
    }
    jobs = [averaged(tmp_path / name, case, stages, **values) for name, (case, values) in cases.items()]
    both_ways(jobs)
    for each in jobs:
        assert_equal_averages(each.run.path, each.run.path / "simulated")


@pytest.mark.slow
def test_averages_under_a_schedule_of_torch_equal_those_of_gpipe(tmp_path):
    section = {"_target_": "pipetrain.plugins.torch_schedules.schedules.ZBVZeroBubble"}
    changes = {"dataset": {"train": 20}, "train": {"microbatches": 2}}
    (result,) = distributed([averaged(tmp_path / "torch", "gpipe", 2, schedule=section, **changes)])
    expected = simulated(averaged(tmp_path / "ours", "gpipe", 2, **changes))
    assert result["final"] == pytest.approx(expected["final"], rel=1e-5)
    ours, theirs = averages_of(tmp_path / "torch"), averages_of(tmp_path / "ours")
    for name, average in ours.items():
        torch.testing.assert_close(average, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "stages"), [("pipeoptim", 3), ("pipedream", 2), ("pipemare", 3)])
def test_resumed_averages_have_the_bits_of_a_whole_run(tmp_path, method, stages):
    same_resumed(tmp_path, method, stages, checkpoint={"every_steps": 4}, train={"ema": EMA})
    assert_equal_averages(tmp_path / "again", tmp_path / "whole")


def test_averages_resume_into_other_stages_and_executor(tmp_path):
    changes = {"checkpoint": {"every_epochs": 1}}
    simulated(averaged(tmp_path / "whole", "gpipe", 3, **changes))
    half = store.checkpoints(tmp_path / "whole")[0]
    distributed([averaged(tmp_path / "again", "gpipe", 2, resume=half, **changes)])
    ours, theirs = averages_of(tmp_path / "again"), averages_of(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    for name, average in ours.items():
        torch.testing.assert_close(average, theirs[name], rtol=1e-5, atol=1e-6)


def test_averages_of_a_resumed_run_without_any_start_with_its_weights(tmp_path):
    changes = {"checkpoint": {"every_steps": 11}}
    whole = simulated(job(tmp_path / "whole", "pipeoptim", 2, **changes))
    almost = store.checkpoints(tmp_path / "whole")[0]
    again = simulated(averaged(tmp_path / "again", "pipeoptim", 2, resume=almost, **changes))
    assert again["weights_sha256"] == whole["weights_sha256"]
    before, after = (contents.model_state(folder) for folder in (almost, store.newest_undamaged(tmp_path / "again")))
    for name, average in averages_of(tmp_path / "again").items():
        assert torch.equal(average, torch.lerp(before[name], after[name], 1 - EMA)), name


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of twelve steps, as the command line has it."""
    folder = tmp_path_factory.mktemp("run")
    assert carried_out(folder, f"train.ema={EMA}") is ExitCode.COMPLETED
    return folder


def test_evaluation_of_a_run_takes_averages_unless_raw(run, tmp_path):
    carried_out(tmp_path)
    for folder, raw, words in ((run, False, "averaged with train.ema=0.7"), (tmp_path, True, "not averaged")):
        found = evaluate(Selection(run, raw=raw), parse_overrides(["device=cpu"]), trust=True)
        assert found.metrics == pytest.approx(summary(folder)["final"], rel=1e-6)
        assert words in found.weights
        assert any(words in line for line in evaluation_lines(found))
    assert evaluate(Selection(tmp_path), trust=True).weights is None


def test_export_writes_averages_and_buffers_unless_raw(run, tmp_path, capsys):
    assert cli.carry_out(["export", str(run), "-o", str(tmp_path / "w.pt")]) == ExitCode.COMPLETED
    assert "averaged with train.ema=0.7" in capsys.readouterr().out
    export(Selection(run), tmp_path / "averaged.pt", "torch")
    export(Selection(run, raw=True), tmp_path / "raw.pt", "torch")
    averaged, raw = torch.load(tmp_path / "averaged.pt"), torch.load(tmp_path / "raw.pt")
    averages, model = averages_of(run), contents.model_state(store.newest_undamaged(run))
    assert any("running_mean" in name for name in model.keys() - averages.keys())
    assert averaged.keys() == raw.keys() == model.keys()
    for name, tensor in model.items():
        assert torch.equal(raw[name], tensor)
        assert torch.equal(averaged[name], averages.get(name, tensor))


def test_averages_are_off_in_a_run_resumed_without_them(run, tmp_path):
    assert carried_out(tmp_path, f"resume={run}", "train.epochs=3") is ExitCode.COMPLETED
    assert not contents.load_tensors(store.newest_undamaged(tmp_path), Kind.AVERAGE)


def test_run_that_adds_averages_says_where_they_start(tmp_path, capsys):
    carried_out(tmp_path / "plain")
    carried_out(tmp_path / "again", f"resume={tmp_path / 'plain'}", "train.epochs=3", "train.ema=0.3")
    assert "train.ema=0.3: averages start with the weights of" in capsys.readouterr().out


TINY = (
    "model=lenet5", "dataset=synthetic_images", "dataset.limit=16", "dataset.classes=4", "train.batch_size=8",
    "train.epochs=6", "train.microbatches=2", "executor=simulated", "threads=1",
)  # fmt: skip
REPLICATED = ("asp", "data_parallel")
NAMED = [each.name for each in choices_of("method") if each.name not in ("custom", *DISTINCT)]
"""The methods that the tests above do not have."""


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("replicated", [True, False])
def test_other_methods_by_name_run_with_averages(tmp_path, replicated):
    names = [name for name in NAMED if (name in REPLICATED) is replicated]
    methods = f"method={','.join(names)}"
    pipeline = ("partition.stages=1", "partition.replicas=[2]") if replicated else ("partition.stages=2",)
    done = pipetrain(
        "run", "--multirun", methods, "train.ema=null,0.5", *TINY, *pipeline,
        "hydra.sweep.dir=runs", "hydra.sweep.subdir=${hydra:runtime.choices.method}-${train.ema}",
        cwd=tmp_path, timeout=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for name in names:
        plain, ours = (summary(tmp_path / "runs" / f"{name}-{ema}") for ema in ("None", "0.5"))
        assert bits(ours) == bits(plain), name
        assert ours["final"]["loss"] != plain["final"]["loss"], name
