"""Which process has which stages."""

import pytest

from pipetrain.engine.schedules import Placement
from pipetrain.plugins.torch_schedules.schedules import Interleaved1F1B, ZBVZeroBubble


def test_placement_names_the_process_of_each_stage():
    assert Placement.one_each(3).stages_of == ((0,), (1,), (2,))
    assert Interleaved1F1B(3).placement(6).stages_of == ((0, 2, 4), (1, 3, 5))
    assert ZBVZeroBubble().placement(6).stages_of == ((0, 5), (1, 4), (2, 3))
    assert [ZBVZeroBubble().placement(6).process_of(r) for r in range(6)] == [0, 1, 2, 2, 1, 0]
    assert (ZBVZeroBubble().placement(6).of_last_stage, Interleaved1F1B(3).placement(6).of_last_stage) == (0, 1)
    assert ZBVZeroBubble().placement(4).in_order([["a", "d"], ["b", "c"]]) == ["a", "b", "c", "d"]
    assert (Placement.one_each(3).name(1), ZBVZeroBubble().placement(4).name(0)) == ("stage 1", "stages 0 and 3")


@pytest.mark.parametrize(
    "placement",
    [
        Placement.one_each(6),
        Interleaved1F1B(3).placement(6),
        Interleaved1F1B(2).placement(6),
        ZBVZeroBubble().placement(6),
    ],
)
def test_values_of_processes_come_back_in_the_order_of_stages(placement):
    assert placement.in_order(placement.stages_of) == list(range(6))
    assert [placement.process_of(r) for r in range(6)] == [
        p for r in range(6) for p in range(placement.num_processes) if r in placement.stages_of[p]
    ]
    assert 5 in placement.stages_of[placement.of_last_stage]
