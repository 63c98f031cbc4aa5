"""Predicted pipelines against hand-computed ones."""

from dataclasses import replace

import pytest

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.program.pipeline_graph import SteadyPipeline
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.interleaved import InterleavedContinuous1F1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.engine.schedules.placement import Placement
from pipetrain.engine.schedules.zero_bubble import ZBH1
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.memory import MemoryModel, MemoryRules
from pipetrain.planning.costs.prediction import predict, stage_times
from pipetrain.planning.costs.topology import Topology
from pipetrain.planning.profile.profile import LoaderTime, Message, MessageCpuTime, Profile, ProfiledLayer

_NONE = LoaderTime(0.0, 0.0)


def prediction(
    schedule,
    forward=(1.0, 2.0),
    N=1,
    sent=8,
    bandwidth=1e9,
    update_s=0.0,
    latency_s=0.0,
    reading=_NONE,
    messages=(None, None),
):
    D = len(forward)
    layers = tuple(ProfiledLayer(f"l{i}", f, 2 * f, sent, 100, 5) for i, f in enumerate(forward))
    output, gradient = messages
    layers = tuple(replace(each, encoded_output=output, encoded_gradient=gradient) for each in layers)
    profile = Profile(layers, tuple((i, i + 1) for i in range(D - 1)), batch_size=12, reading=reading)
    cut = CutProfile(profile, tuple((i,) for i in range(D)), (1,) * D, Topology((D,), (bandwidth,)))
    times = stage_times(cut, N, [update_s] * D, latency_s)
    pipeline = SteadyPipeline([schedule.steady_cycle(r, D, N) for r in range(D)], times, (1,) * D, [0.0] * D)
    return predict(cut, pipeline, [None] * D)


def test_prediction_without_messages_is_slowest_stage_and_update():
    found = prediction(OneFOneB(), N=2, bandwidth=1e30, update_s=0.5)
    assert found.time_per_minibatch_s == pytest.approx(6.5)
    assert found.bound == "stage 1"
    assert [stage.idle for stage in found.stages] == pytest.approx([1 - 3.5 / 6.5, 0.0])
    assert found.samples_per_s == pytest.approx(12 / 6.5)


def test_first_stage_reading_data_can_limit_the_rate():
    found = prediction(OneFOneB(), bandwidth=1e30, reading=LoaderTime(inputs_s=4.0, targets_s=0.5))
    assert found.time_per_minibatch_s == pytest.approx(7.0)
    assert found.bound == "stage 0"
    assert [stage.reading_s for stage in found.stages] == [4.0, 0.5]
    assert [stage.idle for stage in found.stages] == pytest.approx([4 / 7, 1 / 7])


def test_prediction_of_a_drained_pipeline_has_its_fill_and_drain():
    found = prediction(GPipe(), forward=(1.0, 1.0), N=4, bandwidth=1e30)
    assert found.time_per_minibatch_s == pytest.approx(3 * (4 + 1) / 4)
    assert found.idle == pytest.approx(1 / 5)
    assert found.bound == "the round trip"


def test_slow_link_limits_the_rate_of_a_filled_pipeline():
    found = prediction(PipeMareSchedule(), N=4, sent=100, bandwidth=10)
    assert found.time_per_minibatch_s == pytest.approx(10.0)
    assert found.link_busy == pytest.approx((1.0,))
    assert found.bound == "link 0-1"
    assert found.sent_bytes == 2 * 100


def test_formats_of_messages_take_less_of_the_link_and_time_of_the_stages():
    messages = Message(100, 4 * 0.25, 4 * 0.5), Message(20, 4 * 0.125, 4 * 0.0625)
    slow = prediction(PipeMareSchedule(), N=4, sent=200, bandwidth=10, messages=messages)
    assert slow.time_per_minibatch_s == pytest.approx(10.0)  # of the activations
    assert slow.link_busy == pytest.approx((1.0,))
    assert slow.sent_bytes == 100 + 20
    fast = prediction(PipeMareSchedule(), N=4, bandwidth=1e30, messages=messages)
    assert fast.time_per_minibatch_s == pytest.approx(6.0 + 4 * (0.5 + 0.125))  # the last stage decodes and encodes
    messages = Message(5, 0.25, 0.5), Message(1, 0.125, 0.0625)
    drained = prediction(GPipe(), (1.0, 1.0), 1, sent=10, bandwidth=1, messages=messages)
    assert drained.time_per_minibatch_s == pytest.approx(2 * 3.0 + 5 + 1 + 0.25 + 0.5 + 0.125 + 0.0625)


def test_latency_counts_for_every_message():
    slow, fast = (prediction(GPipe(), N=2, bandwidth=1e30, latency_s=each) for each in (0.25, 0.0))
    assert slow.time_per_minibatch_s - fast.time_per_minibatch_s == pytest.approx(2 * 0.25)


def test_process_with_several_stages_takes_their_sum_and_holds_their_memory():
    layers = tuple(ProfiledLayer(f"l{i}", f, 2 * f, 8, 100, 5) for i, f in enumerate((3.0, 1.0, 1.0, 1.0)))
    profile = Profile(layers, ((0, 1), (1, 2), (2, 3)), batch_size=12)
    placement, stages = Placement.looped(4, 2), ((0,), (1,), (2,), (3,))
    cut = CutProfile(profile, stages, (1,) * 4, Topology((2,), (1e30,)), placement)
    rules = PipelineRules(InterleavedContinuous1F1B(), NaiveAsync(), 4, 8)
    cycles = [rules.steady_cycle(r) for r in range(4)]
    times = stage_times(cut, 8, [0.5] * 4)
    pipeline = SteadyPipeline(cycles, times, (1,) * 4, [0.0] * 4, orders=rules.steady_orders())
    model = MemoryModel((MemoryRules(8, rules.schedule, lambda _: 1, lambda _: 0),))
    found = predict(cut, pipeline, model.pipeline_bytes((1,) * 4, cut.stage_sizes, placement))
    assert found.bound == "process 0"
    assert found.time_per_minibatch_s == pytest.approx(3 * (3 + 1) + 2 * 0.5)
    assert [stage.idle for stage in found.stages] == pytest.approx([0.0, 1 - 7 / 13] * 2)
    assert [stage.process for stage in found.stages] == [0, 1, 0, 1]
    own = model.pipeline_bytes((1,) * 4, cut.stage_sizes)
    assert [stage.memory_bytes for stage in found.stages] == pytest.approx(
        [own[0] + own[2], own[1] + own[3]] * 2, abs=1
    )


def test_split_backward_counts_gradients_of_weights_apart():
    layers = (
        ProfiledLayer("a", 1.0, 2.0, 8, 100, 5),
        ProfiledLayer("b", 1.0, 2.0, 8, 0, 5),
        ProfiledLayer("c", 1.0, 2.0, 8, 100, 5, weight_gradient_s=0.5),
    )
    cut = CutProfile(Profile(layers, ((0, 1), (1, 2))), ((0, 1), (2,)), (1, 1), Topology((2,), (1e30,)))
    times = stage_times(cut, 2, [0.0] * 2, split=True)
    assert times.weight_gradient == [0.5, 0.25]  # of a microbatch: half of the backward, where nothing is known
    assert times.backward == [1.5, 0.75]
    pipeline = SteadyPipeline([ZBH1().steady_cycle(r, 2, 2) for r in range(2)], times, (1, 1), [0.0] * 2)
    stages = predict(cut, pipeline, [None] * 2).stages
    assert [(stage.backward_s, stage.weight_gradient_s) for stage in stages] == [(3.0, 1.0), (1.5, 0.5)]
    assert stage_times(cut, 2, [0.0] * 2).backward == [2.0, 1.0]


def test_message_work_counts_in_every_operation_on_shared_cores():
    layers = tuple(ProfiledLayer(name, 1.0, 2.0, 8, 100, 5) for name in "ab")
    profile = Profile(layers, ((0, 1),), batch_size=12, message_work=MessageCpuTime(0.25, 0.125))
    cycles = [OneFOneB().steady_cycle(r, 2, 2) for r in range(2)]
    topologies = (Topology((2,), (1e30,), cores=cores) for cores in (2, None))
    cuts = (CutProfile(profile, ((0,), (1,)), (1, 1), topology) for topology in topologies)
    shared, own = (
        predict(cut, SteadyPipeline(cycles, stage_times(cut, 2, [0.0] * 2), (1, 1), [0.0] * 2), [None] * 2)
        for cut in cuts
    )
    assert own.time_per_minibatch_s == pytest.approx(3.0)
    assert shared.time_per_minibatch_s == pytest.approx(3.0 + 2 * 2 * (0.25 + 4 * 0.125))
