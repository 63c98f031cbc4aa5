"""Timelines drawn as text, against drawings by hand."""

from textwrap import dedent

import pytest

from pipetrain.program.text_grid import grid
from pipetrain.schedules.gpipe import GPipe
from pipetrain.schedules.nf1b import NF1B
from pipetrain.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.schedules.pipelined_backprop import PipelinedBackprop
from pipetrain.schedules.sequential import Sequential


@pytest.mark.parametrize(
    ("schedule", "D", "N", "M", "drawing"),
    [
        (
            Sequential(), 3, 1, 2,
            """
            stage 0  F0.0  .    .    .    .   B0.0 F1.0  .    .    .    .   B1.0
            stage 1   .   F0.0  .    .   B0.0  .    .   F1.0  .    .   B1.0
            stage 2   .    .   F0.0 B0.0  .    .    .    .   F1.0 B1.0
            """,
        ),
        (
            GPipe(), 3, 3, 1,
            """
            stage 0  F0.0 F0.1 F0.2  .    .    .    .   B0.0 B0.1 B0.2
            stage 1   .   F0.0 F0.1 F0.2  .    .   B0.0 B0.1 B0.2
            stage 2   .    .   F0.0 F0.1 F0.2 B0.0 B0.1 B0.2
            """,
        ),
        (
            OneFOneBFlush(), 3, 3, 1,
            """
            stage 0  F0.0 F0.1 F0.2  .    .   B0.0  .   B0.1  .   B0.2
            stage 1   .   F0.0 F0.1  .   B0.0 F0.2 B0.1  .   B0.2
            stage 2   .    .   F0.0 B0.0 F0.1 B0.1 F0.2 B0.2
            """,
        ),
        (
            OneFOneB(), 3, 1, 4,
            """
            stage 0  F0.0 F1.0 F2.0  .    .   B0.0 F3.0 B1.0  .   B2.0  .   B3.0
            stage 1   .   F0.0 F1.0  .   B0.0 F2.0 B1.0 F3.0 B2.0  .   B3.0
            stage 2   .    .   F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0
            """,
        ),
        (
            OneFOneB(depth=1), 2, 1, 2,
            """
            stage 0  F0.0  .    .   B0.0 F1.0  .    .   B1.0
            stage 1   .   F0.0 B0.0  .    .   F1.0 B1.0
            """,
        ),
        (
            PipelinedBackprop(), 2, 1, 4,
            """
            stage 0  F0.0 F1.0 F2.0 B0.0 F3.0 B1.0  .   B2.0  .   B3.0
            stage 1   .   F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0
            """,
        ),
        (
            NF1B(), 2, 2, 2,
            """
            stage 0  F0.0 F0.1 F1.0 F1.1  B0   .    .    B1
            stage 1   .   F0.0 F0.1  B0  F1.0 F1.1  B1
            """,
        ),
    ],
    ids=["sequential", "gpipe", "1f1b_flush", "1f1b", "1f1b depth 1", "pipelined_backprop", "nf1b"],
)  # fmt: skip
def test_grid_of_a_small_schedule_is_the_one_drawn_by_hand(schedule, D, N, M, drawing):
    drawn = grid([schedule.operations(r, D, N, M) for r in range(D)])
    assert drawn == dedent(drawing).strip("\n")


def test_grid_cells_line_up_when_numbers_have_different_widths():
    lines = grid([OneFOneB().operations(r, 2, 1, 12) for r in range(2)]).splitlines()
    starts = [line.index("F11.0") % 6 for line in lines]
    assert len(set(starts)) == 1
