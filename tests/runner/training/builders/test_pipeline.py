"""Replicas that a plan in a file brings."""

import json

import pytest
from support.one_run import prepared
from support.small_model import build as small_model

from pipetrain.engine.errors import ConfigError
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.runner.config.composition import combinations
from pipetrain.runner.training.builders.pipeline import MOST_STAGES, composed_phases


@pytest.fixture
def planned(tmp_path):
    """A plan of two replicas of the first four layers of the small model, and one of the others."""
    stages = (PlannedStage((0, 1, 2, 3), 2, 0.1, 8), PlannedStage((4, 5, 6), 1, 0.1, 8))
    plan = PipelinePlan(stages, 0.1, 0.3, 0.2, tuple(small_model(1, 4).labels))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_json()))
    return {"_target_": "pipetrain.planning.partition.from_file.PartitionFromPlan", "path": str(path)}


def test_a_plan_with_replicas_is_run_by_as_many_processes(tmp_path, planned):
    run = prepared(tmp_path, partition=planned)
    assert (run.plan.replicas, run.placement.num_processes) == ((2, 1), 3)
    assert run.head()["replicas"] == run.plan.to_json()["replicas"] == [2, 1]
    assert "stage 0 has 2 replicas, and updates with the mean gradient of 2 minibatches" in run.notes


def test_partition_replicas_has_the_last_word(tmp_path, planned):
    run = prepared(tmp_path, partition={**planned, "replicas": [1, 1]})
    assert run.placement.num_processes == 2


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        (
            "vertical_sync",
            {},
            r"^partition\.path=.*plan\.json: its stages have replicas, 2-1: .*; or planner\.straight",
        ),
        ("pipedream", {"train": {"precision": "fp16"}}, r"^the plan's partition\.replicas=\[2, 1\]: .*bf16 works"),
        ("pipedream", {"train": {"batch_size": 22}}, r"^the plan's partition\.replicas=\[2, 1\]: an epoch"),
    ],
)
def test_run_that_cannot_have_planned_replicas_is_refused(tmp_path, planned, case, changes, message):
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, case, partition=planned, **changes)


def test_other_error_with_planned_replicas_is_reported_alone(tmp_path, planned):
    with pytest.raises(ConfigError, match=r"^train\.recompute_boundaries"):
        prepared(tmp_path, partition=planned, train={"recompute_boundaries": [99]})


def test_combinations_are_those_of_a_sweep():
    assert list(combinations(["a=1,2", "b=[x,y]", "c=3,4"])) == [
        [f"a={a}", "b=[x,y]", f"c={c}"] for a in (1, 2) for c in (3, 4)
    ]


def test_composed_phases_are_those_that_would_run():
    words = ["method=pipemare", "partition.stages=3", "train.microbatches=2", "train.batch_size=8"]
    first, last = composed_phases([*words, "phases=[{method: gpipe, schedule: gpipe, steps: 5}, {}]"])
    assert (first.names, first.steps, first.batch_size) == ({"method": "gpipe", "schedule": "gpipe"}, 5, 8)
    assert (last.names, last.steps) == ({"method": "pipemare", "schedule": "pipemare"}, None)
    assert (last.rules.num_stages, last.rules.num_microbatches, last.rules.segments) == (3, 2, None)


def test_boundaries_in_layers_are_segments_of_stages():
    cuts = ["partition=explicit", "partition.boundaries=[2,5,9]", "method=pipemare"]
    (phase,) = composed_phases([*cuts, "train.recompute_boundaries=[0,5]"])
    assert (phase.rules.num_stages, phase.rules.segments.firsts) == (4, (0, 2))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["partition.stages=0"], r"partition.stages=0: .*at least 1"),
        ([f"partition.stages={MOST_STAGES + 1}"], rf"1 to {MOST_STAGES}"),
        (["train.recompute_boundaries=[2]"], r"without the model only partition=explicit says"),
        (["partition=explicit"], r"partition.boundaries is not set; e.g. partition.boundaries=\[4,7\]"),
    ],
)
def test_stage_count_only_a_model_could_tell_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        composed_phases(words)
