"""PACI's bound on the updates between a forward and its backward, from the operation lists of `naive_async`."""

import pytest

from papers.publications.paci import bound
from papers.staleness import rules_of
from pipetrain.engine.schedules.operation import Kind


def updates_between(depth, accumulated, stage):
    """The updates between the forward and the backward of each microbatch on a stage."""
    rules = rules_of("naive_async", depth, accumulated)
    made, at_forward, found = 0, {}, []
    for planned in rules.planned(stage, 2 * rules.steady + 2):
        operation = planned.operation
        if operation.kind is Kind.UPDATE:
            made += 1
        elif operation.kind is Kind.FORWARD:
            at_forward[operation.minibatch, operation.microbatch] = made
        else:
            found.append(made - at_forward.pop((operation.minibatch, operation.microbatch)))
    return found


@pytest.mark.parametrize(("depth", "accumulated"), [(2, 1), (4, 1), (4, 2), (4, 3), (5, 8), (8, 3), (8, 8)])
def test_updates_between_forward_and_backward_stay_in_bound(depth, accumulated):
    assert max(updates_between(depth, accumulated, stage=0)) == bound(depth, accumulated)
    assert all(max(updates_between(depth, accumulated, stage)) <= bound(depth, accumulated) for stage in range(depth))
