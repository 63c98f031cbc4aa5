"""How long operations and messages take."""

from pipetrain.engine.program.times import StageTimes
from pipetrain.engine.schedules.operation import Kind, backward, forward, update

TIMES = StageTimes(
    forward=[1.0, 2.0, 3.0],
    recomputation=[0.5, 0.5, 0.5],
    backward=[4.0, 5.0, 6.0],
    update=[0.1, 0.2, 0.3],
    num_microbatches=4,
    latency=[10.0, 20.0],
    transmission=[0.25, 0.5],
)


def test_operation_takes_the_time_of_its_kind_on_its_stage():
    assert TIMES.duration(1, forward(7, 2)) == 2.0
    assert TIMES.duration(2, backward(7, 2)) == 6.0
    assert TIMES.duration(0, backward(7, 2).like(Kind.RECOMPUTATION)) == 0.5
    assert TIMES.duration(2, update(7)) == 0.3


def test_whole_minibatch_operation_takes_its_microbatches_time():
    assert TIMES.duration(1, backward(7, None)) == 4 * 5.0


def test_latency_counts_once_and_transmission_per_microbatch():
    assert TIMES.transfer(0, 1, forward(0, 0)) == TIMES.transfer(1, 0, backward(0, 0)) == 10.25
    assert TIMES.transfer(2, 1, backward(0, None)) == 20.0 + 4 * 0.5
