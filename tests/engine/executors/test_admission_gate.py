"""The gate between minibatches, and runs that are broken off there."""

import threading
import time
from itertools import takewhile

import pytest
from support.methods import METHODS

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.admission_gate import AdmissionGate
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.schedules import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin


def test_shut_gate_admits_only_what_began_elsewhere():
    gate = AdmissionGate()
    assert gate.admits()
    assert gate.hold() == 1
    gate.shut(3)  # another process is ahead
    assert [gate.admits() for _ in range(4)] == [True, True, False, False]
    assert gate.ended_after == 3


def test_held_gate_waits_for_the_decision():
    gate = AdmissionGate()
    gate.admits()
    gate.hold()
    answers = []
    thread = threading.Thread(target=lambda: answers.append(gate.admits()))
    thread.start()
    time.sleep(0.05)
    assert answers == []
    assert gate.hold() == 2  # the one that waits has asked
    gate.shut(1)
    thread.join()
    assert (answers, gate.ended_after) == ([False], 1)


def test_paused_gate_admits_minibatch_once_reopened():
    gate = AdmissionGate(alone=True)
    assert gate.admits()
    gate.pause()
    assert not gate.admits()
    assert (gate.ended_after, gate.ends, gate.begun) == (1, False, 2)
    gate.open()
    assert (gate.ended_after, gate.begun, gate.openings) == (None, 1, 1)
    assert gate.admits()


def test_end_requested_during_pause_comes_at_reopening():
    gate = AdmissionGate(alone=True)
    gate.admits()
    gate.pause()
    assert not gate.admits()
    gate.end()
    gate.open()
    assert not gate.admits()
    assert (gate.ended_after, gate.ends) == (1, True)


@pytest.mark.parametrize("case", METHODS)
def test_list_that_ends_early_is_the_beginning_of_the_longer_one(case):
    """What `ReadCursor.end_before` relies on: the pipeline may drain before any minibatch that no stage has begun."""
    method, schedule = METHODS[case]
    for stages, microbatches in ((1, 1), (2, 1), (3, 2), (4, 4)):
        try:
            rules = PipelineRules(schedule, method, stages, microbatches)
        except ConfigError:
            continue
        for r in range(stages):
            whole = rules.planned(r, 9)
            for end in range(1, 9):
                begun = [(each.operation, each.read) for each in whole if each.operation.minibatch < end]
                assert begun == [(each.operation, each.read) for each in rules.planned(r, end)]


@pytest.mark.parametrize("case", ["gpipe", "pipedream", "pipeoptim"])
def test_shorter_replica_list_goes_on_where_longer_one_stops(case):
    """It is broken off where an operation is of a minibatch that no worker has begun, or of a round that has one."""
    method, schedule = METHODS[case]
    rules = PipelineRules(RoundRobin(schedule, Replicas((2, 3, 1))), method, 3, 2)
    for worker in range(6):
        whole = rules.planned(worker, 9)
        for end in range(1, 9):
            begun = [*takewhile(lambda each: each.operation.minibatch < end, whole)]  # noqa: B023  (used at once)
            shorter = rules.planned(worker, end)[: len(begun)]
            assert [(each.operation, each.read) for each in begun] == [(each.operation, each.read) for each in shorter]


def test_evaluation_parts_are_counted_but_are_not_minibatches():
    gate, before = AdmissionGate(), []
    gate.before = lambda: before.append(None)
    gate.admits()
    assert gate.admits_part(3)
    assert (gate.begun, len(before)) == (4, 1)


def test_run_that_all_end_here_has_ended_after_what_has_begun():
    gate = AdmissionGate()
    gate.admits(3)
    gate.end_here()
    assert (gate.ended_after, gate.ends) == (3, True)


def test_gate_counts_earlier_minibatches_of_other_replicas():
    gate = AdmissionGate()
    assert gate.admits(2)  # the second minibatch, which is this replica's first
    assert gate.begun == 2
    gate.hold()
    gate.shut(3)
    assert not gate.admits(2)
    assert gate.ended_after == 3
