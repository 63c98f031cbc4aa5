"""The cursor on a stage's list."""

import pytest
import torch
from support.pipelines import stage_of
from torch import nn

from pipetrain.engine.errors import InvariantError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.executors.read_cursor import ReadCursor
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.planned_operations import PlannedOperation
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.schedules import Kind, Replicas
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.round_robin import RoundRobin


def cursor(minibatches=3):
    rules = PipelineRules(OneFOneB(), PipeDream(), num_stages=2, num_microbatches=1)
    return ReadCursor(stage_of(nn.Linear(2, 2)), rules, DrainInterval(0, 4, 4 + minibatches, start=4))


def update(stage, *, keep):
    gradients = {name: torch.ones_like(parameter) for name, parameter in stage.optimizer.parameters.items()}
    stage.update(stage.updates, gradients, keep=keep, steady=True)


def carry_out_next(walk):
    planned = walk.next
    if planned.operation.kind is Kind.UPDATE:
        update(walk.stage, keep=not planned.releases)
    walk.advance(planned)


def test_cursor_walks_the_list_to_its_end():
    walk, walked = cursor(), []
    while walk.next is not None:
        walked.append(str(walk.next.operation))
        walk.advance(walk.next)
    assert walked == ["F0.0", "F1.0", "B0.0", "U0", "F2.0", "B1.0", "U1", "B2.0", "U2"]


def test_cursor_counts_versions_from_the_start_of_the_run():
    made = cursor()
    update(made.stage, keep=False)
    later = ReadCursor(made.stage, made.rules, DrainInterval(0, 0, 3, start=1))
    assert later.base == 1
    assert later.read(later.next).version == 1


def test_cursor_releases_a_version_with_its_last_reader():
    walk = cursor()
    while walk.next is not None:
        if walk.next.operation.kind is not Kind.UPDATE:
            assert walk.stage.weights.version(walk.read(walk.next).version) is not None
        carry_out_next(walk)
    assert walk.stage.weights.held() == [3]


def test_cursor_refuses_a_read_that_the_closed_forms_do_not_give():
    walk = cursor()
    wrong = PlannedOperation(walk.next.operation, WeightRead(1), walk.next.activations, releases=False)
    with pytest.raises(InvariantError, match=r"F0\.0 reads v1 after 0 updates, and by the formulas .* reads v0"):
        walk.read(wrong)


@pytest.mark.parametrize(("replicas", "replica"), [(1, 0), (2, 0), (2, 1)])
def test_reads_are_checked_until_the_list_repeats_and_in_every_hundredth_round(replicas, replica, monkeypatch):
    schedule = RoundRobin(OneFOneB(), Replicas((replicas, 1))) if replicas > 1 else OneFOneB()
    rules, checked = PipelineRules(schedule, PipeDream(), num_stages=2, num_microbatches=1), []
    monkeypatch.setattr(PipelineRules, "check", lambda _rules, _stage, planned, *_: checked.append(planned.operation))
    stage = stage_of(nn.Linear(2, 2))
    stage.replica = replica
    walk = ReadCursor(stage, rules, DrainInterval.whole(210 * replicas))
    while walk.next is not None:
        if walk.next.operation.kind is not Kind.UPDATE:
            walk.read(walk.next)
        walk.advance(walk.next)
    rounds = {operation.minibatch // replicas for operation in checked}
    assert rounds == {*range(max(rounds & set(range(50))) + 1), 100, 200}
    assert rules.steady // replicas < max(rounds & set(range(50))) + 1 < 10
    assert {operation.kind for operation in checked} == {Kind.FORWARD, Kind.BACKWARD}


@pytest.mark.parametrize("end", range(1, 7))
def test_replica_list_ending_within_round_opens_no_minibatch(end):
    """Not even by the update that ends the round early: the gate, which refused one, would refuse it for ever."""
    rules = PipelineRules(RoundRobin(OneFOneB(), Replicas((3, 1))), PipeDream(), num_stages=2, num_microbatches=1)
    for replica in range(3):
        stage = stage_of(nn.Linear(2, 2))
        stage.replica = replica
        walk, begun = ReadCursor(stage, rules, DrainInterval(0, 0, 9, start=0)), 0
        while begun + walk.opens(walk.entered) <= end:
            begun += walk.opens(walk.entered)
            carry_out_next(walk)
        walk.end_before(end)
        while walk.next is not None:
            assert walk.opens(walk.entered) == 0
            carry_out_next(walk)
