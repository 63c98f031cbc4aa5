"""The tables of plans and runs."""

from pathlib import Path

import pytest
import torch

from pipetrain.runner.partition.rules import Even
from pipetrain.runner.partition.run_plan import Plan, StagePlan, make_plan
from pipetrain.runner.terminal.run_tables import next_steps, plan_table, summary_lines
from pipetrain.zoo.models import torchvision_models


def test_plan_table_has_a_line_for_each_stage():
    stages = [
        StagePlan(0, 3, ["conv1", "pool1", "conv2"], 2_572, 3.0, 1, 10_288),
        StagePlan(3, 4, ["a.very.long.name.of.one.layer"], 1_048_120, 1.0, 1, 4_192_480),
    ]
    assert plan_table(Plan("even", stages), ["cpu", "cuda:1"]) == [
        "stage  layers                                 parameters  est. time  device",
        "    0  0-2     conv1 to conv2                      2,572     75.0 %  cpu",
        "    1  3       a.very.long.name.of.one.layer   1,048,120     25.0 %  cuda:1",
    ]


def test_plan_table_fits_the_terminal(monkeypatch):
    with torch.device("meta"):
        chain = torchvision_models.resnet(50, 3, 1000)
    table = plan_table(make_plan(chain, Even(4), [torch.zeros(2, 3, 64, 64)]), ["cuda:0"] * 4)
    assert max(map(len, table)) <= 100
    monkeypatch.setenv("COLUMNS", "80")
    labels = [f"transformer.layers.{k}.attention.output.projection" for k in range(2)]
    table = plan_table(Plan("even", [StagePlan(0, 2, labels, 2_572, 3.0, 1, 10_288)]), ["cpu"])
    assert "transf...ection to transf...ection" in table[1]
    assert max(map(len, table)) <= 80


def test_plan_table_shows_both_ends_of_many_stages():
    stages = [StagePlan(r, r + 1, [f"layer{r}"], 1, 1.0, 1, 4) for r in range(20)]
    lines = plan_table(Plan("even", stages), ["cpu"] * 20)
    assert [line.split()[0] for line in lines] == ["stage", "0", "1", "2", "3", "...", "16", "17", "18", "19"]
    assert "12 more" in lines[5]


def stage(idle_share, forward_staleness, activations):
    return {
        "idle_share": idle_share, "weight_versions_max": 2, "weight_bytes_peak": 1_250_000,
        "activation_bytes_peak": activations, "forward_staleness": forward_staleness, "backward_staleness": [0],
    }  # fmt: skip


def ended(**fields):
    """The lines of a run with these fields in its summary."""
    return summary_lines({"status": "completed", "steps": 1, "wall_s": 1.0, "final": {}, "per_stage": [], **fields})


def test_summary_says_how_the_run_ended_and_what_each_stage_did():
    lines = ended(
        steps=10, wall_s=61.2, eval_s=5.25, samples_per_second=512.4, final={"loss": 0.51234, "top1": 81.0}, best={},
        per_stage=[stage(0.25, [0, 1], 2_000_000), stage(None, [], None)],
    )  # fmt: skip
    assert lines == [
        "completed after 10 steps, 1 min 1 s (evaluation 5.2 s), 512 samples/s",
        "final  loss 0.5123  top1 81",
        "stage  idle  versions  weights  activations  staleness F / B",
        "    0   25%         2  1.25 MB         2 MB  0,1 / 0",
        "    1     -         2  1.25 MB            -  - / 0",
    ]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"samples_per_second": 40.0, "tokens_per_second": 5000.0}, [["5,000 tokens/s"]]),
        (
            {"simulator_samples_per_second": 90.4, "predicted_samples_per_second": 160.2},
            [["simulated at 90.4 samples/s"], ["as a pipeline 160 samples/s", "predicted"]],
        ),
        ({"eval_s": 0.25, "checkpoint_s": 2.56}, [["1.0 s", "evaluation 0.2 s", "checkpoints 2.6 s"]]),
        ({"eval_s": 0.01, "checkpoint_s": 0.01}, [["completed after 1 step, 1.0 s"]]),
        (
            {"target_metrics": {"top1": 66, "loss": 1.5}, "target": {"step": 8, "epoch": 2, "wall_s": 20.0}},
            [[], ["{top1: 66, loss: 1.5}", "step 8, epoch 2, 20.0 s"]],
        ),
        ({"target_metrics": {"top1": 66}, "target": None}, [[], ["{top1: 66}", "not reached"]]),
        (
            {"status": "failed", "steps": 0, "wall_s": 0.04, "per_stage": [{"parameters": 3}]},
            [["failed after 0 steps, 0.0 s"]],
        ),
        (
            {"final": {"loss": 0.5, "top1": 81.0}, "best": {"loss": 0.5, "top1": 81.0}},
            [[], ["final  loss 0.5  top1 81", "also the best"]],
        ),
    ],
)
def test_summary_shows_what_was_measured(fields, shown):
    lines = ended(**fields)
    assert len(lines) == len(shown)
    assert all(part in line for line, parts in zip(lines, shown, strict=True) for part in parts), lines


@pytest.mark.parametrize(
    ("epochs", "line"),
    [
        ({"loss": 2, "top1": 3}, "best   loss 0.4 (epoch 2)  top1 82 (epoch 3)"),
        ({"loss": 2, "top1": 2}, "best   loss 0.4  top1 82  (epoch 2)"),
        ({}, "best   loss 0.4  top1 82"),
    ],
)
def test_best_metrics_say_in_which_epoch_each_was_best(epochs, line):
    lines = ended(final={"loss": 0.5, "top1": 81.0}, best={"loss": 0.4, "top1": 82.0}, best_epoch=epochs)
    assert lines[1:] == ["final  loss 0.5  top1 81", line]


def test_next_steps_name_the_run_as_seen_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert next_steps(tmp_path / "outputs" / "a", traced=False).endswith(
        "tensorboard --logdir outputs/a, pipetrain report runs outputs"
    )
    assert next_steps(Path("/my runs/a"), traced=True).endswith(
        "report runs '/my runs', pipetrain timeline '/my runs/a'"
    )
