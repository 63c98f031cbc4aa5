"""Where the wall time of a run goes."""

import time

from pipetrain.tracking.wall_clock import WallClock


def test_clock_goes_on_from_the_earlier_part_of_a_run():
    clock = WallClock({"wall_s": 100.0, "eval_s": 7.0})
    time.sleep(0.3)
    clock.start()
    clock.spend("eval_s", 0.5)
    clock.spend("checkpoint_s", 0.25)
    fields = clock.fields()
    assert 100.0 <= fields["wall_s"] < 100.3
    assert (fields["eval_s"], fields["checkpoint_s"]) == (7.5, 0.25)
