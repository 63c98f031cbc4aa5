"""Runs whose replicas train alone: both executors, resumed, evaluated and exported."""

from dataclasses import replace

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from support.cli import records, summary
from support.equal_bits import assert_same, both_ways, replicated, same_resumed
from support.methods import DISTINCT, fitting
from support.one_run import EVEN, carried_out, prepared
from support.worker_pool import distributed, job, simulated

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import parse_overrides
from pipetrain.runner.tracking.trackers.points import points_of
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.finished.evaluate import evaluate
from pipetrain.runner.training.finished.export import export

OPTIONS = {"average": "weights", "share": 0.3, "delay": 2, "rise_after": 1}
WEIGHTS = {"averaging": OPTIONS}


def alone(folder, counts, method="pipedream", N=1, *, resume=None, averaging=(), **changes):
    method, stages, settings = replicated(counts, method, N, averaging={**OPTIONS, **dict(averaging)}, **changes)
    return job(folder, method, stages, resume=resume, **settings)


def saved(folder):
    """All tensors of a run's newest checkpoint but the losses of its steps."""
    files = sorted(store.newest_undamaged(folder).glob("*.safetensors"))
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return {name: tensor for name, tensor in found.items() if not name.startswith("run.")}


def assert_saved_equal(one, other):
    ours, theirs = saved(one), saved(other)
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("1@model.") for name in ours)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def check(jobs):
    both_ways(jobs)
    for each in jobs:
        assert_saved_equal(each.run.path, each.run.path / "simulated")


def test_replicas_that_train_alone_have_equal_bits_in_both_executors(tmp_path):
    check([alone(tmp_path / "run", (2, 2), N=2)])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_method_and_delay_has_equal_bits_on_replicas_that_train_alone(tmp_path):
    jobs = []
    for k, method in enumerate(DISTINCT):
        N = 1 if fitting(method, 2, 1) else 2
        averaging = {"delay": (0, 1, 3)[k % 3], "correction": ("ema", "update", "none")[k // 3 % 3]}
        jobs.append(alone(tmp_path / method, (2, 2), method, N, averaging=averaging))
    # a drain cuts the second round of four replicas short
    jobs.append(alone(tmp_path / "short", (4,), "gpipe", averaging={"share": 1.0}))
    clipped = {"optimizer": {"clip_norm": 0.05}, "train": {"epochs": 2, "precision": "bf16", "channels_last": True}}
    jobs.append(alone(tmp_path / "clipped", (2, 2), "gpipe", **clipped))
    jobs.append(alone(tmp_path / "three", (3, 3), "naive_async", averaging={"share": 0.01, "delay": 4}))
    check(jobs)


EPOCHS = {"train": {"epochs": 3}, "checkpoint": {"every_epochs": 1}}


def test_resumed_replicas_go_on_as_they_were(tmp_path):
    method, stages, changes = replicated((2, 2), "pipedream", 1, **WEIGHTS, **EPOCHS)
    same_resumed(tmp_path, method, stages, **changes)
    assert_saved_equal(tmp_path / "whole", tmp_path / "again")
    # cut elsewhere, from another process each
    half = store.checkpoints(tmp_path / "whole")[0]
    moved = job(tmp_path / "moved", method, stages, resume=half, **changes)
    (result,) = distributed([moved])
    assert_same(result, simulated(replace(moved, run=RunDirectory(tmp_path / "moved" / "simulated"))))
    assert_saved_equal(tmp_path / "moved", tmp_path / "whole")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of six rounds, as the command line has it."""
    folder = tmp_path_factory.mktemp("run")
    words = [f"averaging.{name}={value}" for name, value in OPTIONS.items()]
    assert carried_out(folder, *words, "partition.replicas=[2,2]") is ExitCode.COMPLETED
    return folder


def test_evaluations_and_exports_read_the_mean_over_replicas(run, tmp_path):
    result, state = summary(run), saved(run)
    export(Selection(run), tmp_path / "mean.safetensors", "safetensors")
    export(Selection(run, raw=True), tmp_path / "first.safetensors", "safetensors")
    mean, first = load_file(tmp_path / "mean.safetensors"), load_file(tmp_path / "first.safetensors")
    trained = [name.removeprefix("average.") for name in state if name.startswith("average.")]
    assert any(not torch.equal(state[f"model.{name}"], state[f"1@model.{name}"]) for name in trained)
    for name in trained:
        own = [state[f"model.{name}"], state[f"1@model.{name}"]]
        assert torch.equal(mean[name], sum(own) / 2)
        assert torch.equal(first[name], own[0])
    found = evaluate(Selection(run), parse_overrides(["device=cpu"]), trust=True)
    assert found.metrics == pytest.approx(result["final"], rel=1e-6)
    assert "averaged with averaging.average=weights" in found.weights
    raw = evaluate(Selection(run, raw=True), parse_overrides(["device=cpu"]), trust=True)
    assert raw.metrics["loss"] != found.metrics["loss"]
    distances = [stage["replica_distance"] for stage in result["per_stage"]]
    assert all(0 < distance < 1 for distance in distances)
    (*_, last) = (record for record in records(run) if record["kind"] == "epoch")
    points = points_of(last)
    assert [points[f"replica_distance/stage{r}"] for r in range(2)] == distances
    assert "replica_distance/stage1/replica1" in points


def test_resumed_run_keeps_its_replicas(run, tmp_path, capsys):
    for words, named in (
        (["partition.replicas=[3,3]"], "with partition.replicas=[2, 2], and this run has partition.replicas=[3, 3]"),
        (["averaging.delay=4"], "with averaging.delay=2, and this run has averaging.delay=4"),
        (
            ["averaging.average=gradients"],
            "with averaging.average=weights, and this run has averaging.average=gradients",
        ),
    ):
        given = [f"averaging.{name}={value}" for name, value in OPTIONS.items()]
        code = carried_out(tmp_path, *given, "partition.replicas=[2,2]", *words, f"resume={run}", "train.epochs=4")
        assert code is ExitCode.WRONG_USAGE
        assert named in capsys.readouterr().err


def test_replicas_of_averaged_gradients_go_on_alone(tmp_path):
    """All begin with the same weights and optimizer state."""
    method, stages, changes = replicated((2, 2), "pipedream", 1, **EPOCHS)
    simulated(job(tmp_path / "together", method, stages, **changes))
    half = store.checkpoints(tmp_path / "together")[0]
    check([job(tmp_path / "alone", method, stages, resume=half, **{**changes, **WEIGHTS})])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["averaging.delay=3"], "averaging.delay=3: has no effect, because averaging.average=gradients"),
        (["averaging.average=weights", "averaging.delay=6"], "averaging.delay=6: nothing is averaged in 6 updates"),
        (["averaging.average=weights", "averaging.delay=4", "averaging.share=0.3"], "replicas may drift apart"),
        (
            ["averaging.average=weights", "averaging.delay=4"],
            "0.05 of the weights is averaged after each update, 4 updates",
        ),
    ],
)
def test_run_says_what_is_averaged(tmp_path, words, said):
    notes = prepared(
        tmp_path, partition={**EVEN, "replicas": [2, 2]}, **OmegaConf.to_container(OmegaConf.from_dotlist(words))
    ).notes
    assert any(said in note for note in notes)
    assert sum("warning" in note for note in notes) == (words[-1] != "averaging.delay=4")
