"""The closed forms of staleness and memory, as the papers' tables say them."""

import pytest

from papers.closed_forms import CLOSED, Position, utilization_of_gpipe

SYNCHRONOUS = ("gpipe", "pipedream_flush")


@pytest.mark.parametrize(
    ("name", "forward", "versions"),
    [
        ("pipedream", [[3], [2], [1], [0]], [4, 3, 2, 1]),
        ("pipedream_vertical_sync", [[3]] * 4, [4] * 4),
        ("pipeoptim", [[3], [2], [1], [0]], [2, 2, 2, 1]),
        ("stale", [[6], [4], [2], [0]], [1] * 4),
        ("pipemare", [[7], [5], [3], [1]], [2] * 4),
        ("timeprest", [[3]] * 4, [1, 2, 3, 4]),
    ],
)
def test_closed_forms_of_four_stages_are_those_of_the_papers(name, forward, versions):
    places = [Position(r, 4, 1) for r in range(4)]
    assert [CLOSED[name].forward(at) for at in places] == forward
    assert [CLOSED[name].versions(at) for at in places] == versions


@pytest.mark.parametrize("N", [2, 3, 5])
def test_microbatch_delay_rounds_up_to_updates(N):
    at = Position(0, 4, N)
    assert CLOSED["pipedream"].forward(at) == sorted({max(0, -(-(3 - j) // N)) for j in range(N)})
    assert max(CLOSED["pipemare"].forward(at)) == -(-7 // N)


@pytest.mark.parametrize("name", CLOSED)
def test_staleness_never_grows_downstream_or_in_the_backward(name):
    for N in (1, 4):
        places = [Position(r, 5, N) for r in range(5)]
        forward = [max(CLOSED[name].forward(at)) for at in places]
        assert forward == sorted(forward, reverse=True)
        assert all(max(CLOSED[name].backward(at)) <= most for at, most in zip(places, forward, strict=True))
    assert (max(forward) == 0) is (name in SYNCHRONOUS)


def test_utilization_of_gpipe_is_that_without_its_bubble():
    assert utilization_of_gpipe(1, 3) == 1.0
    assert utilization_of_gpipe(4, 4) == pytest.approx(4 / 7)
