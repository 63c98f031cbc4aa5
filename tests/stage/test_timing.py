"""A stage's clock on the CPU."""

import time

import torch

from pipetrain.schedules.operation import forward
from pipetrain.stage.timing import Clock


def test_clock_gives_the_time_of_each_operation_once_and_in_order():
    clock = Clock(torch.device("cpu"))
    for seconds in (0.01, 0.0):
        with clock.computing():
            time.sleep(seconds)
    first, second = clock.take()
    assert first.seconds >= 0.01
    assert second.start >= first.start + first.seconds
    assert clock.take() == []


def test_clock_times_messages_only_where_they_are_traced():
    clock = Clock(torch.device("cpu"))
    with clock.waiting("recv", forward(0, 0)):
        pass
    assert clock.take_waits() == []
    clock.traced = True
    with clock.waiting("send", forward(1, 0)):
        time.sleep(0.01)
    (wait,) = clock.take_waits()
    assert (wait.what, wait.of) == ("send", forward(1, 0))
    assert wait.span.seconds >= 0.01
    assert clock.take_waits() == []
