"""The lists of own_schedule, against lists written by hand, and by the checks that pipetrain makes before a run."""

import pytest
from pipetrain.engine.program.custom_schedule import check_custom_schedule

from own_method.schedule import OwnSchedule


def test_lists_equal_those_written_by_hand() -> None:
    lists = [" ".join(map(str, OwnSchedule().operations(r, D=3, N=4, M=1))) for r in range(3)]
    assert lists == [
        "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3 U0",
        "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3 U0",
        "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 U0",
    ]


@pytest.mark.parametrize("D", range(1, 6))
@pytest.mark.parametrize("N", range(1, 7))
@pytest.mark.parametrize("extra", [0, 1, 3])
def test_lists_of_all_stages_can_run(D: int, N: int, extra: int) -> None:
    check_custom_schedule(OwnSchedule(extra), D, N)
