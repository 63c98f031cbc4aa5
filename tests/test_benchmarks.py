"""Steps of a round that the benchmarks count, and rows that they accept."""

import pytest
from rounds import COOL_DOWN, WARM_UP, Round, overhead, rules_of
from rows import Measured, Rows

from pipetrain.engine.schedules.operation import Kind

SECONDS = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.UPDATE: 0.0}


@pytest.mark.parametrize("steps", [WARM_UP + COOL_DOWN + 1, WARM_UP + COOL_DOWN + 5])
@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("method", ["naive_async", "pipedream", "pipeoptim", "pipemare"])
def test_counted_steps_take_as_long_as_both_passes_of_the_slower_stage(method, slow, steps):
    lists = rules_of(method).lists(steps)
    computing = [
        [SECONDS[operation.kind] * (1.5 if stage == slow else 1.0) for operation in operations]
        for stage, operations in enumerate(lists)
    ]
    measured = [Round(seconds=1.5 * 3.0, computing=each) for each in computing]
    assert overhead(method, steps, measured) == pytest.approx(0)


@pytest.mark.parametrize(
    ("name", "loss", "right"),
    [
        ("pipedream", 2.1, True),
        ("pipedream", 1.0, False),
        ("limit_3", 1.0, True),
        ("limit", 3.0, False),
        ("limit", float("nan"), False),
    ],
)
def test_row_needs_the_loss_of_the_synchronous_row_and_a_limit_no_higher_one(name, loss, right):
    rows = Rows({"sequential": [Measured(1.0, 2.0)], name: [Measured(1.0, loss)]})
    if right:
        rows.check("sequential")
    else:
        with pytest.raises(SystemExit, match=f"{name}: no measurement"):
            rows.check("sequential")
