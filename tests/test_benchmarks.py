"""Steps of a round that the benchmarks count, rows that they accept, and what the drill computes from its runs."""

import json
from pathlib import Path

import pytest
import scale
from drill_goodput import STEPS, Run, rows_of, young
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


def calm_run(every, seconds, pause):
    """An undisturbed run of the drill with checkpoints every so many steps, each of which takes `pause` seconds."""
    checkpoints = STEPS // every
    whole = seconds + checkpoints * pause
    return Run("undisturbed", every, whole + 4, seconds, whole, checkpoints * pause, seconds / STEPS, 1.0)


def test_interval_of_young_follows_from_the_cost_of_a_checkpoint_and_the_time_between_failures():
    found = young([calm_run(2, 48.0, 0.25), calm_run(16, 48.0, 0.25), calm_run(48, 48.0, 0.25)])
    assert found["checkpoint_cost_s"] == found["checkpoint_pause_s"] == pytest.approx(0.25)
    assert found["start_s"] == 4
    assert found["between_failures_s"] == pytest.approx(48 + 6 * 0.25 + 4)
    assert found["interval_s"] == pytest.approx((2 * 0.25 * found["between_failures_s"]) ** 0.5, abs=0.1)
    assert found["interval_steps"] == round(found["interval_s"] / 0.5)


def test_share_of_a_row_is_the_median_of_its_runs_with_their_range():
    (row,) = rows_of([Run("worker_killed", 16, seconds, 30.0, 0, 0, 0, 0) for seconds in (40.0, 60.0, 50.0)])
    assert row["kept_share"] == [0.6, 0.5, 0.75]


def test_table_of_many_workers_is_that_of_the_benchmark():
    page = Path(__file__).resolve().parents[1] / "docs" / "clusters.md"
    assert (
        scale.table(json.loads((page.parents[1] / "results" / "bench" / "scale.json").read_text())["rows"])
        in page.read_text()
    )


def test_connections_take_few_rounds_whatever_the_number_of_stages():
    assert scale.rounds((1, 1)) == 2
    assert {scale.rounds((1,) * stages) for stages in (3, 64, 512)} == {4}
    assert scale.rounds((15, 1)) == 30
