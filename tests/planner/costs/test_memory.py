"""What schedule, method and optimizer keep of a stage, by the rules of SPEC's tables of methods."""

import subprocess
import sys

import pytest
import torch
from support.cli import environment
from support.methods import MethodCase
from support.pipelines import batches, pipeline
from support.worker_pool import phase, settings
from torch import nn

from pipetrain.methods import Method
from pipetrain.methods.lwp import LinearWeightPrediction
from pipetrain.methods.pipedream import PipeDream
from pipetrain.methods.pipemare import PipeMare
from pipetrain.planner.costs.memory import MemoryModel, StagePlace, StageSizes
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.weight_reads import WeightRead
from pipetrain.schedules.base import Family
from pipetrain.schedules.one_f_one_b import OneFOneB
from pipetrain.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.weights.statistic import UpdateAverage

SIZES = StageSizes(weights=100.0, activations=12.0, inputs=4.0)
SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}
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
    ],
)
def test_stage_keeps_what_its_method_and_schedule_say(case, microbatches, r, weights, activations):
    expected = weights * SIZES.weights + activations * SIZES.activations
    assert kept(case, r, microbatches=microbatches) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("optimizer", "options", "states"),
    [
        ("torch.optim.SGD", {"momentum": 0.9}, 1),
        ("torch.optim.Adam", {}, 2),
        ("torch.optim.AdamW", {"amsgrad": True}, 3),
        ("torch.optim.RMSprop", {"centered": True}, 2),
        ("mylib.Optimizer", {}, 2),
    ],
)
def test_optimizer_keeps_its_states(optimizer, options, states):
    assert kept("gpipe", optimizer={"_target_": optimizer, "lr": 0.1, **options}) == (2 + states) * 100 + 12


def test_average_of_weights_is_one_more_set():
    for method in ("gpipe", "pipedream"):
        assert kept(method, ema=0.9) == kept(method) + SIZES.weights


def test_error_feedback_is_two_more_sets_during_an_update():
    assert kept("gpipe", optimizer={**SGD, "error_feedback": 1.0}) == kept("gpipe") + 2 * SIZES.weights


def test_recomputation_keeps_inputs_and_one_microbatch():
    assert kept("naive_async", recompute=True) == 200 + 4 * 4 + 12
    assert kept("gpipe", recompute=True, microbatches=4) == 200 + 4 + 12 / 4


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


def test_built_in_methods_are_planned_without_torch():
    code = (
        "import sys\nfrom pipetrain.config.composition import composed\n"
        "from pipetrain.planner.costs.memory import MemoryModel\n"
        "for method in ('pipedream', 'pipeoptim', 'pipemare', 'lwp', 'spectrain', 'hogwild', 'asp'):\n"
        "    MemoryModel.of(composed([f'method={method}']))\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)
