"""What schedule, method and optimizer keep of a stage, by the rules of SPEC's tables of methods."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.methods import MethodCase
from support.pipelines import batches, pipeline
from support.processes import python
from support.quick_cases import every
from support.worker_pool import phase, settings
from torch import nn

from pipetrain.engine.methods import Method
from pipetrain.engine.methods.lwp import LinearWeightPrediction
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.engine.schedules.zero_bubble import ZBH1
from pipetrain.engine.weights.statistic import UpdateAverage
from pipetrain.planning.costs.memory import (
    MemoryModel,
    MemoryRules,
    StagePlace,
    StageSizes,
    split_in_flight,
    with_states,
)
from pipetrain.planning.profile.profile import Profile, ProfiledLayer, ProfiledWeight
from pipetrain.runner.config.composition import composed
from pipetrain.runner.partition.shared_weight import SharedWeight
from pipetrain.runner.training.components.optimizer import build_torch_optimizer, parameter_groups

SIZES = StageSizes(
    weights=100.0, trainable=100.0, state=0.0, activations=12.0, entering=1.0, inputs=4.0, outputs=0.0, gradients=0.0
)
SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}
BOUNDARIES = {"batch_size": 4, "recompute_boundaries": [0]}
PREDICTED = MethodCase(LinearWeightPrediction(), OneFOneB())
DELAYED = MethodCase(PipeDream(), PipeMareSchedule())
UNCORRECTED = MethodCase(PipeMare(t2=False), PipeMareSchedule())


def kept(case, r=0, optimizer=SGD, **train):
    """Of stage r of four."""
    model = MemoryModel.of(settings(case, optimizer=optimizer, train={"batch_size": 4, **train}))
    return model.stage_bytes(StagePlace.row((1,) * 4)[r], SIZES)


@pytest.mark.parametrize(
    ("case", "microbatches", "r", "weights", "activations"),
    [
        # weights and gradients, what is in flight
        ("gpipe", 4, 0, 2, 4 / 4),
        ("pipedream_flush", 2, 3, 2, 1 / 2),
        ("naive_async", 1, 0, 2, 4),
        ("pipedream", 1, 0, 4 + 1, 4),
        ("pipedream", 1, 3, 1 + 1, 1),
        ("vertical_sync", 1, 3, 4 + 1, 1),
        (DELAYED, 1, 0, 8 + 1, 8),
        ("pipedream_2bw", 4, 0, 2 + 1, 4 / 4),
        ("pipeoptim", 1, 0, 2 + 1, 4),
        ("pipeoptim", 1, 3, 1 + 1, 1),
        ("stale", 1, 0, 2, 7),
        ("pipemare", 1, 0, 2 + 2, 8),
        (UNCORRECTED, 1, 0, 1 + 1, 8),
        ("timeprest", 2, 2, 3 + 1, 2),
        (PREDICTED, 1, 0, 2 + 2, 4),
        (PREDICTED, 1, 3, 1 + 1, 1),
    ],
)
def test_stage_keeps_what_its_method_and_schedule_say(case, microbatches, r, weights, activations):
    expected = weights * SIZES.weights + activations * SIZES.activations
    assert kept(case, r, microbatches=microbatches) == pytest.approx(expected)


def layer_of(*weights, weight_bytes=None):
    size = sum(each.weight_bytes for each in weights) if weight_bytes is None else weight_bytes
    return ProfiledLayer("layer", 1.0, 1.0, 0, size, 0, weights=weights if weight_bytes is None else None)


def states(words, *layers, shared=()):
    """Bytes of the optimizer's state of each layer."""
    settings = composed(words).optimizer
    return [each.state_bytes for each in with_states(Profile(layers, (), shared_weights=shared), settings).layers]


def real_state_bytes(settings, weights):
    """Of a stage that holds all of them, after two updates."""
    parameters = {each.name: nn.Parameter(torch.randn(each.shape)) for each in weights}
    groups = parameter_groups(settings, parameters)
    build = partial(build_torch_optimizer, settings)
    optimizer = StageOptimizer(build, parameters, lambda _: 0.01, groups, settings.error_feedback)
    for _ in range(2):
        optimizer.step({name: torch.randn_like(each) for name, each in parameters.items()})
    return sum(value.nbytes for state in optimizer.state().values() for value in state.values())


def custom(name):
    return ["optimizer=custom", f"optimizer._target_=torch.optim.{name}", "optimizer.lr=0.01"]


FIRST_BY_ADAMW = "optimizer.groups=[{match: w0, algorithm: adamw}]"
SHAPES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["optimizer=sgd"],
        ["optimizer=sgdm", "optimizer.groups=[{match: w0, momentum: 0}]"],
        ["optimizer=adam", "+optimizer.amsgrad=true"],
        ["optimizer=adamw"],
        ["optimizer=adamw", "optimizer.error_feedback=1"],
        ["optimizer=nadam"],
        ["optimizer=adagrad"],
        ["optimizer=rmsprop"],
        ["optimizer=rmsprop", "optimizer.centered=true", "optimizer.momentum=0.9"],
        ["optimizer=lars"],
        custom("RAdam"),
        custom("Adamax"),
        custom("Adadelta"),
        custom("Rprop"),  # asked, as it is not among those that are known
        ["optimizer=muon"],
        ["optimizer=muon", FIRST_BY_ADAMW],
        ["optimizer=soap", "optimizer.error_feedback=1"],
        *(
            ["optimizer=soap", f"optimizer.source={source}", f"optimizer.geometry={geometry}", FIRST_BY_ADAMW]
            for source in ("second", "first")
            for geometry in ("bilateral", "unilateral")
        ),
    ],
    ids=" ".join,
)
def test_optimizer_state_is_predicted_to_the_byte(words):
    settings = composed(words).optimizer

    @hypothesis_settings(max_examples=15)
    @given(SHAPES)
    def exact(shapes):
        weights = [ProfiledWeight(f"w{i}", shape, 4) for i, shape in enumerate(shapes)]
        predicted = with_states(Profile((layer_of(*weights),), ()), settings).layers[0].state_bytes
        if settings.error_feedback is not None:
            predicted += sum(each.weight_bytes for each in weights)  # which `MemoryRules.more` counts
        assert predicted == real_state_bytes(settings, weights)

    exact()


@pytest.mark.parametrize(
    ("words", "tensors"),
    every(
        3,
        [
            (["optimizer=sgdm", "optimizer.groups=[{match: w0, momentum: 0}]"], 0),
            (["optimizer=rmsprop", "optimizer.groups=[{match: w0, centered: true}]"], 2),
            (["optimizer=adam", "optimizer.groups=[{match: w0, amsgrad: true}]"], 3),
        ],
    ),
)
def test_options_of_a_group_count_in_the_state_of_its_weights(words, tensors):
    size = 4 * 3 * 5
    number = 0 if words[0] == "optimizer=sgdm" else 4
    in_group, other = states(words, *(layer_of(ProfiledWeight(name, (3, 5), 4)) for name in ("w0", "w1")))
    assert in_group == tensors * size + number
    assert other == in_group + (size if words[0] == "optimizer=sgdm" else -size)


def test_soap_needs_more_for_oblong_matrices():
    shapes = (64, 64), (64, 256), (256,)
    step = 4
    found = states(["optimizer=soap"], *(layer_of(ProfiledWeight("w", shape, 4)) for shape in shapes))
    assert found == [6 * 4 * 64**2 + step, round(10.5 * 4 * 64 * 256) + step, 2 * 4 * 256 + step]


@pytest.mark.parametrize(("name", "sets"), every(3, [("soap", 6), ("adamw", 2), ("muon", 1)]))
def test_weights_of_unknown_shapes_count_as_square_matrices(name, sets):
    layers = layer_of(weight_bytes=1000), layer_of(ProfiledWeight("w", (3,), 4)), layer_of()
    shared = (SharedWeight((0, 1), 12),)
    found = with_states(Profile(layers, (), shared_weights=shared), composed([f"optimizer={name}"]).optimizer)
    assert [each.state_bytes for each in found.layers] == [sets * 1000, 2 * 12 + 4, 0]
    assert found.shared_weights[0].state_bytes == sets * 12


@pytest.mark.parametrize("words", [custom("ASGD"), ["optimizer=custom", "optimizer._target_=mylib.Optimizer"]])
def test_optimizer_that_cannot_be_asked_counts_as_two_tensors(words):
    assert states([*words, "optimizer.lr=0.01"], layer_of(ProfiledWeight("w", (3, 5), 4))) == [2 * 60]


def test_state_of_a_shared_weight_counts_once():
    tied, own = ProfiledWeight("tied", (8, 2), 4), ProfiledWeight("own", (2, 2), 4)
    layers = layer_of(tied, own), layer_of(), layer_of(tied)
    profile = Profile(layers, (), shared_weights=(SharedWeight((0, 2), tied.weight_bytes),))
    settings = composed(["optimizer=soap"]).optimizer
    found = with_states(profile, settings)
    assert found.state_bytes_of((0, 1)) == found.state_bytes_of((0, 1, 2)) == real_state_bytes(settings, [tied, own])
    assert found.state_bytes_of((1, 2)) == real_state_bytes(settings, [tied])


def test_stage_keeps_the_state_beside_its_weights():
    model = MemoryModel.of(settings("pipedream", optimizer=SGD, train={"batch_size": 4}))
    places = StagePlace.row((1,) * 4)
    sizes = replace(SIZES, state=7.0)
    assert [model.stage_bytes(place, sizes) for place in places] == [507 + 4 * 12, 407 + 3 * 12, 307 + 2 * 12, 207 + 12]


def test_frozen_weights_count_once_and_have_no_gradients():
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    net[0].requires_grad_(requires_grad=False)
    for case in ("pipedream", "pipeoptim"):
        pipe = pipeline(net, [2], case)
        pipe.executor.train(batches(torch.randn(24, 4), torch.arange(24) % 4, 4), DrainInterval.whole(6))
        sizes = StageSizes(160.0, 80.0, *[0.0] * 6)
        model = MemoryModel.of(settings(case, optimizer=SGD, train={"batch_size": 4, "ema": 0.9}))
        gradients_and_average = 2 * 80
        measured = pipe.stages[0].report()["weight_bytes_peak"]
        assert model.stage_bytes(StagePlace.row((1, 1))[0], sizes) == measured + gradients_and_average == 240 + 160


def test_messages_take_memory_until_they_have_arrived():
    sent = replace(SIZES, outputs=8.0, gradients=4.0)

    def more(case, **train):
        model = MemoryModel.of(settings(case, optimizer=SGD, train={"batch_size": 4, **train}))
        second = StagePlace.row((1,) * 4)[1]
        return model.stage_bytes(second, sent) - model.stage_bytes(second, SIZES)

    # gradients of all that the stage before has in flight, and one; the outputs are among the activations
    assert more("pipedream") == (4 + 1) * 4
    assert more("gpipe", microbatches=4) == (4 + 1) * 4 / 4
    assert more("timeprest", microbatches=2) == (8 / 2 + 1) * 4  # the gradients of a whole minibatch
    assert more("gpipe", microbatches=4, recompute=True) == ((4 + 1) * 4 + 8) / 4


@pytest.mark.parametrize(
    ("case", "counts", "messages"),
    [
        ("pipedream", (1, 1), 2 + 1),
        ("pipedream", (2, 2), 2 + 1),
        ("pipedream", (2, 1), 2 * (2 + 1)),  # to each of two workers
        ("pipedream", (1, 2), 2 + 1),  # of three in flight there, two are every second one
        ("pipedream", (4, 6), 2 * (1 + 1)),  # of three in flight there, every third one
        ("gpipe", (3, 1), 3 * (1 + 1)),
    ],
)
def test_gradients_go_to_each_worker_of_the_stage_before(case, counts, messages):
    model = MemoryModel.of(settings(case, optimizer=SGD, train={"batch_size": 4}))
    last = StagePlace.row(counts)[1]
    assert model.stage_bytes(last, replace(SIZES, gradients=4.0)) - model.stage_bytes(last, SIZES) == messages * 4


@pytest.mark.parametrize(("r", "most"), [(0, 3), (1, 2), (2, 1)])
def test_stage_keeps_what_waits_for_gradients_of_weights(r, most):
    """Of ZB-H1: with three stages and four microbatches, stage r starts each W r backwards later."""
    assert max(before for before, _ in split_in_flight(ZBH1(), r, 3, 4)) == most
    assert max(after for _, after in split_in_flight(ZBH1(), r, 3, 4)) == r + 1
    model = MemoryModel((MemoryRules(4, ZBH1(), lambda _: 1, lambda _: 0),))
    sizes = replace(SIZES, put_aside=40.0)
    peaks = [3 * 12 / 4, (2 * 12 + 1 * 40) / 4, (1 * 12 + 2 * 40) / 4]
    others = [(2 * 12 + 1 * 40) / 4, (1 * 12 + 2 * 40) / 4, 3 * 40 / 4]
    assert model.stage_bytes(StagePlace.row((1,) * 3)[r], sizes) == 200.0 + max(peaks[r], others[r])


def test_data_that_is_read_ahead_counts_once():
    for case in ("gpipe", "pipedream"):
        model = MemoryModel.of(settings(case, optimizer=SGD, train={"batch_size": 4, "microbatches": 2}))
        first = StagePlace.row((1,) * 4)[0]
        assert model.stage_bytes(first, replace(SIZES, read_ahead=9.0)) == model.stage_bytes(first, SIZES) + 9


def test_average_of_weights_is_one_more_set():
    for method in ("gpipe", "pipedream"):
        assert kept(method, ema=0.9) == kept(method) + SIZES.weights


def test_replicas_that_train_alone_hold_as_much_of_the_weights_as_they_send():
    def held(share):
        words = "partition.stages=2", "partition.replicas=[3,3]", "averaging.average=weights", "averaging.delay=4"
        model = MemoryModel.of(composed(["method=pipedream", "optimizer=sgd", *words, f"averaging.share={share}"]))
        return model.stage_bytes(StagePlace.row((3, 3))[1], SIZES)

    # a weight has four parts, of which what a replica and all three have sent in four updates
    assert held(0.3) == held(0.25) == held(1) - (4 - 4 / 4) * (1 + 3) * SIZES.trainable


def test_error_feedback_is_two_more_sets_during_an_update():
    assert kept("gpipe", optimizer={**SGD, "error_feedback": 1.0}) == kept("gpipe") + 2 * SIZES.weights


def test_recomputation_keeps_inputs_and_one_microbatch():
    # one of the inputs of that microbatch is among its activations
    assert kept("naive_async", recompute=True) == 200 + 4 * 4 + (12 - 1)
    assert kept("gpipe", recompute=True, microbatches=4) == 200 + 4 + (12 - 1) / 4
    # where a minibatch goes back as one, it is recomputed as one
    assert kept("timeprest", recompute=True, microbatches=2) == 200 + 4 * 4 + (12 - 1)


def test_segments_keep_inputs_of_their_first_stage_and_activations_from_recomputation_on():
    model = MemoryModel.of(settings(UNCORRECTED, optimizer=SGD, train=BOUNDARIES), RecomputeSegments((0, 2), 4))
    activations = [model.stage_bytes(place, SIZES) - 200 for place in StagePlace.row((1,) * 4)]
    assert activations == [8 * 4 + 3 * (12 - 1), 12, 4 * 4 + 3 * (12 - 1), 12]


def test_segments_that_are_not_known_yet_count_as_the_most_that_any_take():
    most = MemoryModel.of(settings(UNCORRECTED, optimizer=SGD, train=BOUNDARIES))
    for firsts in ((0,), (0, 1), (0, 2), (0, 1, 3), (0, 1, 2, 3)):
        model = MemoryModel.of(settings(UNCORRECTED, optimizer=SGD, train=BOUNDARIES), RecomputeSegments(firsts, 4))
        for place in StagePlace.row((1,) * 4):
            assert model.stage_bytes(place, SIZES) <= most.stage_bytes(place, SIZES)


def test_run_of_several_phases_must_fit_its_largest():
    several = settings("gpipe", optimizer=SGD, phases=[phase("gpipe", epochs=1), phase("naive_async")])
    assert MemoryModel.of(several).stage_bytes(StagePlace.row((1,) * 4)[0], SIZES) == 200 + 4 * 12


def test_replicas_share_what_is_in_flight():
    rounds = [StagePlace.row(counts)[0].rounds_behind for counts in ((15, 1), (1,), (16,), (1, 1, 1, 1))]
    assert rounds == [1, 0, 0, 3]


class TwoBuffers(Method):
    """A method of the user's own: the forward reads the version before the newest, and a statistic follows updates."""

    name = "two_buffers"
    family = Family.CONTINUOUS

    def forward(self, moment):
        return WeightRead(max(0, moment.newest - 1))

    def weight_versions(self, _context):
        return 2

    def statistic(self, _context, weights):
        return UpdateAverage(0.5, weights)


def test_custom_method_keeps_declared_and_measured_versions():
    case = MethodCase(TwoBuffers(), OneFOneB())
    # two versions, gradients and the statistic, whatever the depth
    assert kept(case, r=0) == (2 + 1 + 1) * 100 + 4 * 12
    assert kept(case, r=3) == (2 + 1 + 1) * 100 + 1 * 12
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    pipe = pipeline(net, [1, 2], case)
    pipe.executor.train(batches(torch.randn(24, 4), torch.arange(24) % 4, 2), DrainInterval.whole(12))
    assert [stage.report()["weight_versions_max"] for stage in pipe.stages] == [2, 2, 2]


@pytest.mark.slow
def test_built_in_methods_and_torchs_optimizers_are_planned_without_torch():
    code = (
        "import sys\nfrom pipetrain.runner.config.composition import composed\n"
        "from pipetrain.planning.costs.memory import MemoryModel, with_states\n"
        "from pipetrain.planning.profile.profile import Profile, ProfiledLayer, ProfiledWeight\n"
        "layer = ProfiledLayer('', 1, 1, 0, 24, 0, weights=(ProfiledWeight('w', (2, 3), 4),))\n"
        "optimizers = ('sgdm', 'adamw', 'nadam', 'rmsprop', 'sgd', 'adam', 'adagrad')\n"
        "methods = ('pipedream', 'pipeoptim', 'pipemare', 'lwp', 'spectrain', 'hogwild', 'asp')\n"
        "for method, optimizer in zip(methods, optimizers):\n"
        "    settings = composed([f'method={method}', f'optimizer={optimizer}'])\n"
        "    with_states(Profile((layer,), ()), settings.optimizer)\n"
        "    MemoryModel.of(settings)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
