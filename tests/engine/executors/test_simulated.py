"""All stages in one process: what it writes down of them."""

from torch import tensor

from pipetrain.engine.executors.replicas.averaging import Round
from pipetrain.engine.executors.simulated import _Interval, _Mailbox
from pipetrain.engine.schedules import Replicas


def test_norms_of_earlier_rounds_are_not_kept():
    interval = _Interval(Replicas((1, 1)), 0, None)
    boxes = [_Mailbox(stage, interval, None, None) for stage in range(2)]
    for t in range(3):
        this, norms = Round(t, 1), [tensor(float(t)), tensor(t + 0.5)]
        assert boxes[0].norms(this, norms[0]) is None
        assert boxes[1].norms(this, norms[1]) == boxes[0].norms(this, norms[0]) == norms
        assert list(interval.norms) == [t]
