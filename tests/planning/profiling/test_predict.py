"""Predictions of a model that is measured, for the stages that a run would have."""

import json
from dataclasses import replace

import pytest
from support.cli import summary

from pipetrain import cli
from pipetrain.planning.costs.memory import MemoryRules
from pipetrain.runner.config.composition import composed
from pipetrain.runner.training.checkpoint.contents import Kind, load_tensors
from pipetrain.runner.training.planned_run import plan_run

RESNET20 = (
    "model=resnet20 dataset.limit=96 train.batch_size=8 method=pipemare optimizer=sgd seed=1 "
    "partition=explicit partition.boundaries=[2,4,8]"
)
RECOMPUTATIONS = ("train.recompute=true", "train.recompute_boundaries=[0,4]")
GPT = "model=gpt model.width=16 dataset.limit=64 train.batch_size=8 method=gpipe partition=explicit"


@pytest.mark.slow
def test_prediction_of_a_model_is_of_the_stages_that_its_run_has(tmp_path):
    words = ["model=lenet5", "dataset.limit=64", "train.batch_size=16", "partition.stages=2", "threads=1", "device=cpu"]
    words += ["planner.repeats=2", "planner.bandwidth=false", "topology.gigabytes_per_s=[1]"]
    assert cli.carry_out(["plan", *words, "method=pipedream", "-o", str(tmp_path)]) == 0
    (case,) = json.loads((tmp_path / "plan.json").read_text())["pipelines"]
    built = plan_run(composed([*words, "method=pipedream"]))
    assert [stage["num_layers"] for stage in case["stages"]] == [last - first for first, last in built.plan.bounds]
    assert case["batch_size"] == 16
    for stage in case["stages"]:
        assert stage["update_s"] > 0
        assert stage["memory_bytes"] > 0
        assert stage["forward_s"] + stage["backward_s"] <= case["time_per_minibatch_s"] + 1e-9
    assert cli.carry_out(["plan", *words, "method=pipedream", "train.ema=0.9", "-o", str(tmp_path / "ema")]) == 0
    (averaging,) = json.loads((tmp_path / "ema" / "plan.json").read_text())["pipelines"]
    for stage, with_average, planned in zip(case["stages"], averaging["stages"], built.plan.stages, strict=True):
        assert with_average["memory_bytes"] == stage["memory_bytes"] + 4 * planned.parameters
        assert with_average["update_s"] > stage["update_s"]


MEASURING = ["planner.repeats=1", "planner.bandwidth=false", "topology.gigabytes_per_s=[1]", "device=cpu", "threads=1"]


def predicted(folder, *words):
    """Bytes of each stage."""
    assert cli.carry_out(["plan", *words, *MEASURING, "-o", str(folder)]) == 0
    (case,) = json.loads((folder / "plan.json").read_text())["pipelines"]
    return [stage["memory_bytes"] for stage in case["stages"]]


def trained(folder, *words, executor="simulated"):
    running = [f"executor={executor}", "eval.every_epochs=0", "device=cpu", "threads=1", f"hydra.run.dir={folder}"]
    assert cli.carry_out(["run", *words, *running]) == 0


def without_messages_and_data(monkeypatch):
    """Predicts as if messages and the data that is read ahead took no memory: a simulated stage measures neither."""
    of_stage = MemoryRules.stage_bytes
    monkeypatch.setattr(
        MemoryRules, "stage_bytes", lambda rules, place, sizes: of_stage(rules, place, replace(sizes, **NOT_MEASURED))
    )


NOT_MEASURED = {"outputs": 0.0, "gradients": 0.0, "read_ahead": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "steps", "beside"),
    [
        # gradients, and the average of T2
        *((f"{RESNET20} {recompute}", 12, 1 + 1) for recompute in RECOMPUTATIONS),
        # gradients, and the averages of AdamW, in each of the two stages that share a weight
        (f"{GPT} model.tied=true model.layers=1 partition.boundaries=[2]", 2, 1 + 2),
    ],
    ids=["each alone", "two segments", "tied"],
)
def test_stages_take_the_memory_that_their_run_has(tmp_path, monkeypatch, words, steps, beside):
    without_messages_and_data(monkeypatch)
    found = predicted(tmp_path / "prediction", *words.split())
    trained(tmp_path / "run", *words.split(), f"train.max_steps={steps}")
    measured = [
        stage["weight_bytes_peak"] + stage["activation_bytes_peak"] + beside * 4 * stage["parameters"]
        for stage in summary(tmp_path / "run")["per_stage"]
    ]
    assert found == pytest.approx(measured, rel=0.02)


def first_minibatch(words):
    """Its inputs and targets."""
    return next(plan_run(composed(words)).data.train.samples(0, 0, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "method=pipedream partition.boundaries=[1,3]",
        "method=pipedream partition.boundaries=[2] partition.replicas=[2,1]",
        "method=gpipe train.microbatches=4 partition.boundaries=[2]",
        "method=gpipe schedule=interleaved_1f1b train.microbatches=4 partition.boundaries=[1,2,4]",
    ],
)
def test_processes_take_the_memory_that_is_predicted_messages_included(tmp_path, words):
    words = [*f"model=lenet5 train.batch_size=64 partition=explicit {words}".split()]
    assert cli.carry_out(["plan", *words, *MEASURING, "-o", str(tmp_path / "plan")]) == 0
    (case,) = json.loads((tmp_path / "plan" / "plan.json").read_text())["pipelines"]
    trained(tmp_path / "run", *words, "train.max_steps=8", executor="distributed")
    process_of = [stage.get("process", r) for r, stage in enumerate(case["stages"])]
    measured = dict.fromkeys(process_of, 0)
    for process, stage in zip(process_of, summary(tmp_path / "run")["per_stage"], strict=True):
        gradients_and_momentum = 2 * 4 * stage["parameters"]
        measured[process] += stage["weight_bytes_peak"] + stage["activation_bytes_peak"] + gradients_and_momentum
    for process, tensors in zip((process_of[0], process_of[-1]), first_minibatch(words), strict=True):
        measured[process] += sum(tensor.nbytes for tensor in tensors)
    assert [stage["memory_bytes"] for stage in case["stages"]] == [measured[process] for process in process_of]


@pytest.mark.slow
def test_optimizer_state_is_that_of_the_run_s_checkpoint(tmp_path):
    """Soap's matrices, and AdamW's embeddings and biases."""
    words = [*GPT.split(), "model.layers=2", "partition.boundaries=[3]"]
    without, with_state = (sum(predicted(tmp_path / name, *words, f"optimizer={name}")) for name in ("sgd", "soap"))
    trained(tmp_path / "run", *words, "train.max_steps=2", "optimizer=soap")
    states = load_tensors(tmp_path / "run" / "checkpoints" / "step-00000002", Kind.OPTIMIZER)
    # SGD without momentum keeps nothing
    assert with_state - without == sum(tensor.nbytes for state in states.values() for tensor in state.values())
