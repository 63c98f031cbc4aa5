"""The pipeline of a run: schedule and method, recomputed segments, replicas."""

import json

import pytest
from support.methods import MethodCase
from support.one_run import EVEN, prepared
from support.refusals import assert_refused
from support.small_model import build as small_model
from support.worker_pool import settings

from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.planning.pipeline_plan import PipelinePlan, PlannedStage
from pipetrain.runner.training.components.learning_rate import build_rate
from pipetrain.runner.training.components.loss import build_loss
from pipetrain.runner.training.components.optimizer import build_torch_optimizer
from pipetrain.runner.training.components.pipeline import (
    build_partition_rule,
    build_pipeline_rules,
    build_recompute_segments,
)
from pipetrain.runner.training.timetable import timetable_of

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
    ("case", "train", "named"),
    [
        ("vertical_sync", {}, r"partition\.path=.*plan\.json: .*2-1: .*planner\.straight"),
        ("pipedream", {"precision": "fp16"}, r"the plan's partition\.replicas=\[2, 1\]: .*bf16"),
        ("pipedream", {"batch_size": 22}, r"the plan's partition\.replicas=\[2, 1\]: an epoch"),
        ("pipedream", {"recompute_boundaries": [99]}, r"train\.recompute_boundaries"),
    ],
)
def test_run_that_cannot_have_planned_replicas_is_refused(tmp_path, planned, case, train, named):
    assert_refused(f"^{named}", prepared, tmp_path, case, partition=planned, train=train)


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
    ("section", "build"),
    [
        ("method", lambda chosen: build_pipeline_rules(chosen.phases[0], 2, 1, None)),
        ("schedule", lambda chosen: build_pipeline_rules(chosen.phases[0], 2, 1, None)),
        ("loss", lambda chosen: build_loss(chosen.loss, None)),
        ("partition", build_partition_rule),
        ("lr_schedule", lambda chosen: build_rate(chosen, timetable_of(chosen, 6))),
        ("optimizer", lambda chosen: build_torch_optimizer(chosen.optimizer, [])),
    ],
)
def test_target_returning_wrong_type_is_refused(section, build):
    chosen = settings("gpipe", **{section: {"_target_": "builtins.dict", "lr": 0.1}})
    assert_refused(rf"{section}\._target_=builtins\.dict: ", build, chosen)


@pytest.mark.parametrize(
    ("method", "schedule", "works"),
    [
        ("gpipe", "pipedream", "schedule=1f1b_flush, data_parallel, gpipe, .*method=.*naive_async, pipedream"),
        ("pipedream_2bw", "gpipe", "schedule=1f1b_2bw, or method=asp, data_parallel, gpipe"),
    ],
)
def test_method_and_schedule_mismatch_is_refused_with_fits(method, schedule, works):
    case = MethodCase(MethodCase.named(method).method, MethodCase.named(schedule).schedule)
    (phase,) = settings(case).phases
    assert_refused(rf"^method=\w+ .*schedule=\w+; .*{works}", build_pipeline_rules, phase, 2, 2, None)


def test_recomputation_is_by_segments_by_stages_or_not_at_all():
    stage_of = {0: 0, 2: 1, 5: 2}

    def build(**train):
        return build_recompute_segments(settings("gpipe", train=train).train, 3, stage_of)

    assert build() is None
    assert build(recompute=True) == RecomputeSegments((0, 1, 2), 3)
    assert build(recompute_boundaries=[5]) == RecomputeSegments((0, 2), 3)
    assert_refused("layer 3 .* at layers 0, 2, 5$", build, recompute_boundaries=[2, 3])
