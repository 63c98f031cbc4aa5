"""Weight versions are held to what the method declares, and staleness is measured while a stage runs."""

import gc
import platform
import time

import pytest
import torch
from support.methods import METHODS, MethodCase, fitting_cases
from support.pipelines import batches, pipeline, trained
from support.quick_cases import every
from torch import nn

from pipetrain.engine.errors import InvariantError
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.operation import forward
from pipetrain.engine.stage import measurements
from pipetrain.engine.stage.measurements import Clock, Measurements, peak_memory_bytes, reset_peak_memory
from pipetrain.engine.weights.storage_meter import StorageMeter


class Greedy(PipeDream):
    """Stashes what it says it does not."""

    def weight_versions(self, context):
        return 1 if context.stage == 0 else super().weight_versions(context)


def test_more_weight_versions_than_declared_are_an_error():
    with pytest.raises(InvariantError, match=r"^stage 0 held 2 weight versions .* its method may hold 1$"):
        trained(MethodCase(Greedy(), OneFOneB()))


def test_weight_versions_are_limited_by_present_phase():
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    pipe = pipeline(net, [1, 2], [("pipedream", 5), (MethodCase(Greedy(), OneFOneB()), 7)])
    with pytest.raises(InvariantError, match=r"stage 0 held 2 weight versions before update 6; .* may hold 1"):
        pipe.train(batches(torch.randn(48, 4), torch.arange(48) % 4, 4))
    assert pipe.reports("weight_versions_max")[0] == 3


class Keeper(nn.Linear):
    """A layer that keeps the very weights that it computed with last."""

    def forward(self, x):
        self.kept = self.weight.detach()
        return super().forward(x)


def test_weight_versions_count_by_memory_whoever_holds_it():
    torch.manual_seed(0)
    net = nn.Sequential(*[Keeper(4, 4) for _ in range(2)])
    pipe = pipeline(net, [1], "pipeoptim")
    with pytest.raises(InvariantError, match=r"stage 0 held 3 weight versions .* may hold 2"):
        pipe.train(batches(torch.randn(48, 4), torch.arange(48) % 4, 4))


class Cyclic(torch.autograd.Function):
    """Keeps its output in a way that only the garbage collector undoes, which finds one of a chain at a time."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.y = x.tanh()
        return ctx.y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 - ctx.y.detach() ** 2)


class CyclicLayer(nn.Linear):
    def forward(self, x):
        return Cyclic.apply(Cyclic.apply(super().forward(x)))


def test_graph_in_a_reference_cycle_is_not_taken_for_further_versions():
    torch.manual_seed(0)
    pipe = pipeline(nn.Sequential(*[CyclicLayer(4, 4) for _ in range(3)]), [1, 2], "pipedream")
    gc.disable()
    try:
        pipe.train(batches(torch.randn(16, 4), torch.arange(16) % 4, 4))
    finally:
        gc.enable()
    assert pipe.reports("weight_versions_max") == [3, 2, 1]


def test_report_leaves_the_meter_to_its_own_thread(monkeypatch):
    pipe = trained("pipedream", 2)
    monkeypatch.setattr(StorageMeter, "read", lambda _meter: pytest.fail("read in a report"))
    assert [stage.report()["weight_versions_max"] for stage in pipe.stages] == [2, 1]


@pytest.mark.parametrize(("rule", "D", "N"), every(2, fitting_cases(stages=(3,), microbatches=(3,))))
def test_recomputing_methods_hold_no_more_than_declared(rule, D, N):
    method, schedule = METHODS[rule]
    pipe = trained(METHODS[rule], D, N, recompute=range(D))
    for stage, held in zip(pipe.stages, pipe.reports("weight_versions_max"), strict=True):
        assert held <= method.weight_versions(StageContext.under(schedule, stage.index, D, N))


def test_staleness_is_the_updates_between_reading_and_applying():
    measured = Measurements()
    measured.forward, measured.backward = {7: [3, 4], 8: [5]}, {7: [7, 7], 8: [8]}
    measured.settle(7, newest=7, steady=False)
    assert (measured.forward_staleness, measured.backward_staleness) == (set(), set())
    measured.forward[7], measured.backward[7] = [3, 4], [7, 7]
    measured.settle(7, newest=7, steady=True)
    measured.settle(8, newest=8, steady=True)
    assert (measured.forward_staleness, measured.backward_staleness) == ({3, 4}, {0})
    assert measured.forward == measured.backward == {}


def test_clock_gives_each_operation_time_once_in_order():
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


class Passed:
    """An event of a device, at a time in milliseconds."""

    def __init__(self, at, passed):
        self.at, self.passed = at, passed

    def query(self):
        return self.at < self.passed[0]

    def synchronize(self):
        self.passed[0] = max(self.passed[0], self.at + 1)

    read = 0

    def elapsed_time(self, end):
        Passed.read += 1
        return end.at - self.at


def test_clock_of_a_device_keeps_few_events_and_all_times(monkeypatch):
    made, passed = [], [0.0]
    monkeypatch.setattr(Passed, "read", 0)

    def event(_device, **_options):
        made.append(Passed(float(len(made)), passed))
        return made[-1]

    monkeypatch.setattr(measurements, "queues", lambda _device: True)
    monkeypatch.setattr(measurements, "event", event)
    monkeypatch.setattr(measurements, "_EVENTS_KEPT", 4)
    clock, most = Clock(torch.device("cpu")), 0
    for number in range(40):
        before = Passed.read
        with clock.computing():
            pass
        assert Passed.read - before <= 4  # never many in a row
        if number >= 20:  # until then the device has begun nothing
            passed[0] = float(len(made))
        most = max(most, len(clock._events))
    assert most == 21
    assert len(clock._events) < 8
    spans = clock.take()
    begun = [span.start - spans[0].start for span in spans]
    assert begun == pytest.approx([2 * number / 1000 for number in range(40)])
    assert [span.seconds for span in spans] == pytest.approx([0.001] * 40)
    assert clock.take() == []


CPU = torch.device("cpu")


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux can forget a peak")
def test_peak_begins_anew():
    size = 256 * 2**20
    held = torch.ones(size, dtype=torch.uint8)
    before = peak_memory_bytes(CPU)
    assert before > size
    del held
    reset_peak_memory(CPU)
    after = peak_memory_bytes(CPU)
    assert after < before - size // 2
    torch.ones(size, dtype=torch.uint8)
    assert peak_memory_bytes(CPU) > after + size // 2
