"""The way of messages between stages."""

import pytest

from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.program.routes import Routes
from pipetrain.schedules.operation import Operation


@pytest.mark.parametrize(
    ("word", "senders"),
    [
        ("F0.0", [None, 0, 1, 2]),
        ("R0.0", [None, 0, None, 2]),
        ("B0.0", [1, 2, 3, None]),
        ("B0", [1, 2, 3, None]),
        ("U0", [None] * 4),
    ],
)
def test_input_of_an_operation_comes_from_a_neighbor_and_recomputed_activations_from_the_same_segment(word, senders):
    routes = Routes(4, RecomputeSegments((0, 2), 4))
    assert [routes.sender(r, Operation.parse(word)) for r in range(4)] == senders
