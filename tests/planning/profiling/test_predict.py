"""Predictions of a model that is measured, for the stages that a run would have."""

import json

import pytest
from support.cli import summary

from pipetrain import cli
from pipetrain.runner.config.composition import composed
from pipetrain.runner.training.checkpoint.contents import Kind, load_tensors
from pipetrain.runner.training.planned_run import plan_run


@pytest.mark.slow
def test_prediction_of_a_model_is_of_the_stages_that_its_run_has(tmp_path):
    words = ["model=lenet5", "dataset.limit=64", "train.batch_size=16", "partition.stages=2", "threads=1", "device=cpu"]
    words += ["planner.repeats=2", "planner.bandwidth=false", "topology.gigabytes_per_s=[1]"]
    assert cli.carry_out(["predict", *words, "method=pipedream", "-o", str(tmp_path)]) == 0
    (case,) = json.loads((tmp_path / "prediction.json").read_text())
    built = plan_run(composed([*words, "method=pipedream"]))
    assert [stage["num_layers"] for stage in case["stages"]] == [last - first for first, last in built.plan.bounds]
    assert case["batch_size"] == 16
    for stage in case["stages"]:
        assert stage["update_s"] > 0
        assert stage["memory_bytes"] > 0
        assert stage["forward_s"] + stage["backward_s"] <= case["time_per_minibatch_s"] + 1e-9
    assert cli.carry_out(["predict", *words, "method=pipedream", "train.ema=0.9", "-o", str(tmp_path / "ema")]) == 0
    (averaging,) = json.loads((tmp_path / "ema" / "prediction.json").read_text())
    for stage, with_average, planned in zip(case["stages"], averaging["stages"], built.plan.stages, strict=True):
        assert with_average["memory_bytes"] == stage["memory_bytes"] + 4 * planned.parameters
        assert with_average["update_s"] > stage["update_s"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "recomputation",
    ["train.recompute=true", "train.recompute_boundaries=[0,4]"],
    ids=["each alone", "two segments"],
)
def test_recomputing_stages_take_the_memory_that_their_run_has(tmp_path, recomputation):
    words = ["model=resnet20", "dataset.limit=96", "device=cpu", "train.batch_size=8", "method=pipemare", "threads=1"]
    words += ["optimizer=sgd", "executor=simulated", "partition=explicit", "partition.boundaries=[2,4,8]"]
    words += ["seed=1", recomputation]
    measuring = ["planner.repeats=1", "planner.bandwidth=false", "topology.gigabytes_per_s=[1]"]
    assert cli.carry_out(["predict", *words, *measuring, "-o", str(tmp_path / "prediction")]) == 0
    (case,) = json.loads((tmp_path / "prediction" / "prediction.json").read_text())
    running = ["train.max_steps=12", "eval.every_epochs=0", f"hydra.run.dir={tmp_path / 'run'}"]
    assert cli.carry_out(["run", *words, *running]) == 0
    beside = 1 + 1  # gradients, and the average of T2
    measured = [
        stage["weight_bytes_peak"] + stage["activation_bytes_peak"] + beside * 4 * stage["parameters"]
        for stage in summary(tmp_path / "run")["per_stage"]
    ]
    assert [stage["memory_bytes"] for stage in case["stages"]] == pytest.approx(measured, rel=0.02)


@pytest.mark.slow
def test_optimizer_state_is_that_of_the_run_s_checkpoint(tmp_path):
    """Soap's matrices, and AdamW's embeddings and biases."""
    words = ["model=gpt", "model.width=16", "model.layers=2", "dataset.limit=64", "device=cpu", "train.batch_size=8"]
    words += ["method=gpipe", "threads=1", "partition=explicit", "partition.boundaries=[3]"]
    measuring = ["planner.repeats=1", "planner.bandwidth=false", "topology.gigabytes_per_s=[1]"]
    kept = []
    for optimizer in ("sgd", "soap"):
        folder = tmp_path / optimizer
        assert cli.carry_out(["predict", *words, *measuring, f"optimizer={optimizer}", "-o", str(folder)]) == 0
        (case,) = json.loads((folder / "prediction.json").read_text())
        kept.append(sum(stage["memory_bytes"] for stage in case["stages"]))
    running = ["executor=simulated", "train.max_steps=2", "eval.every_epochs=0", f"hydra.run.dir={tmp_path / 'run'}"]
    assert cli.carry_out(["run", *words, *running, "optimizer=soap"]) == 0
    states = load_tensors(tmp_path / "run" / "checkpoints" / "step-00000002", Kind.OPTIMIZER)
    without, with_state = kept  # SGD without momentum keeps nothing
    assert with_state - without == sum(tensor.nbytes for state in states.values() for tensor in state.values())


@pytest.mark.slow
def test_tied_weight_takes_the_memory_that_its_run_has(tmp_path):
    """In each of the two stages that share it."""
    words = ["model=gpt", "model.tied=true", "model.width=16", "model.layers=1", "dataset.limit=64", "device=cpu"]
    words += ["train.batch_size=8", "method=gpipe", "threads=1", "partition=explicit", "partition.boundaries=[2]"]
    measuring = ["planner.repeats=1", "planner.bandwidth=false", "topology.gigabytes_per_s=[1]"]
    assert cli.carry_out(["predict", *words, *measuring, "-o", str(tmp_path / "prediction")]) == 0
    (case,) = json.loads((tmp_path / "prediction" / "prediction.json").read_text())
    running = ["executor=simulated", "train.max_steps=2", "eval.every_epochs=0", f"hydra.run.dir={tmp_path / 'run'}"]
    assert cli.carry_out(["run", *words, *running]) == 0
    beside = 1 + 2  # gradients, and the averages of AdamW
    measured = [
        stage["weight_bytes_peak"] + stage["activation_bytes_peak"] + beside * 4 * stage["parameters"]
        for stage in summary(tmp_path / "run")["per_stage"]
    ]
    assert [stage["memory_bytes"] for stage in case["stages"]] == pytest.approx(measured, rel=0.02)
