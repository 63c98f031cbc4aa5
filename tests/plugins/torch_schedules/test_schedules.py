"""What we say of torch.distributed.pipelining's schedules against what that library says itself."""

import pytest
from support.library_schedules import library_schedule
from support.refusals import assert_refused

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.schedules import ListSchedule
from pipetrain.plugins.torch_schedules.schedules import DualPipeV, Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble

LOOPS = [cls(stages) for cls in (Interleaved1F1B, InterleavedZeroBubble) for stages in (2, 3)]
SCHEDULES = [*LOOPS, ZBVZeroBubble(), DualPipeV()]


def library(schedule, D, N):
    return library_schedule(schedule.library_name, schedule.placement(D), N)


def accepts(make, error):
    try:
        make()
    except error:
        return False
    return True


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_torch_schedules_refuse_what_the_library_refuses(schedule, processes):
    D = processes * schedule.chunks
    for N in range(1, 17):
        ours = accepts(lambda N=N: schedule.check(D, N), ConfigError)
        assert ours == accepts(lambda N=N: library(schedule, D, N), ValueError), N


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_torch_schedules_place_stages_where_the_library_does(schedule, processes):
    D = processes * schedule.chunks
    placement = schedule.placement(D)
    theirs = library(schedule, D, 2 * D).stage_index_to_group_rank
    assert {r: placement.process_of(r) for r in range(D)} == theirs


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_torch_schedules_run_forwards_in_microbatch_order(schedule):
    D = 2 * schedule.chunks
    for actions in library(schedule, D, 8).pipeline_order.values():
        forwards = [each for action in actions if action for each in action.sub_actions or (action,)]
        for r in range(D):
            seen = [each[2] for each in forwards if each[0] == r and each[1].value == "F"]
            assert seen == sorted(seen)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_torch_schedules_say_whether_they_split_backwards(schedule):
    order = library(schedule, 2 * schedule.chunks, 8).pipeline_order
    kinds = {action.computation_type.value for actions in order.values() for action in actions if action}
    assert ("W" in kinds) == schedule.splits_backward


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_torch_schedules_have_no_operation_lists(schedule):
    assert not isinstance(schedule, ListSchedule)
    D = 2 * schedule.chunks
    rules = PipelineRules(schedule, Synchronous(), D, D)
    assert_refused(f"{schedule.name} is run by torch.distributed.pipelining and has no", rules.lists, 1)


def test_interleaved_schedules_refuse_one_stage_in_each_process():
    assert_refused(r"chunks=1: at least 2.*schedule=1f1b_flush", lambda: Interleaved1F1B(1).check(4, 4))


def test_stages_not_dividing_among_processes_are_refused():
    assert_refused(r"partition.stages=7: .*partition.stages=6 or 9 works", lambda: Interleaved1F1B(3).check(7, 4))
    assert_refused(r"partition.stages=1: .* partition.stages=2 works", lambda: ZBVZeroBubble().check(1, 4))
