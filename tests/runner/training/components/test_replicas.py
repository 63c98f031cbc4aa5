"""Replicas of stages: of the settings, and of a plan in a file."""

import json

import pytest
from support.one_run import EVEN, prepared
from support.small_model import build as small_model

from pipetrain.engine.errors import ConfigError
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage

TWO_AND_ONE = {**EVEN, "replicas": [2, 1]}


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


def test_prepared_run_has_process_per_replica_and_minibatch_use(tmp_path):
    found = prepared(tmp_path, partition=TWO_AND_ONE)
    assert found.placement.stages_of == ((0,), (0,), (1,))
    assert found.head()["replicas"] == [2, 1]
    assert found.notes == [
        "stage 0 has 2 replicas, and updates with the mean gradient of 2 minibatches",
        "partition.scale_lr=true: learning rates of the stages times 1, 0.5",
    ]


def test_one_replica_of_each_stage_is_as_none_said(tmp_path):
    assert prepared(tmp_path, partition={**EVEN, "replicas": [1, 1]}).placement == prepared(tmp_path).placement


@pytest.mark.parametrize(
    ("replicas", "changes", "message"),
    [
        ([0, 1], {}, r"partition\.replicas=\[0, 1\]: a list"),
        (2, {}, r"partition\.replicas=2: a list"),
        ([2, 1, 1], {}, r"partition\.replicas=\[2, 1, 1\]: a number for each of 2 stages"),
        ([7, 1], {}, r"partition\.replicas=\[7, 1\]: an epoch"),
        ([2, 1], {"train": {"precision": "fp16"}}, r"partition\.replicas=\[2, 1\]: .*train\.precision=fp16"),
        ([2, 1], {"case": "vertical_sync"}, "method=pipedream"),
        ([2, 1], {"model": {"_target_": "support.tied_model.build"}, "case": "gpipe"}, "model.untie=true works"),
    ],
)
def test_replicas_that_cannot_work_are_refused(tmp_path, replicas, changes, message):
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, partition={**EVEN, "replicas": replicas}, **changes)
