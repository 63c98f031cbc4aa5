"""Methods, schedules and losses refuse by name what cannot work, alone and with each other."""

import math
from functools import partial

import pytest
from support.methods import METHODS
from support.moments import groups_of_two, parameters
from support.refusals import assert_refused, rows
from support.split_schedules import splitting
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RMSprop, Rprop

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses.cross_entropy import CrossEntropy, TokenCrossEntropy
from pipetrain.engine.methods.asp import ASP
from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.methods.hogwild import Hogwild
from pipetrain.engine.methods.i_timeprest import ITiMePReSt
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.methods.spectrain import SpecTrain
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.schedules.interleaved import Interleaved1F1B, InterleavedContinuous1F1B
from pipetrain.engine.schedules.looped_bfs import LoopedBFS
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneB2BW, OneFOneBFlush
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop, PipeMareSchedule
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.schedules.sequential import DataParallel
from pipetrain.engine.schedules.zero_bubble import ZBV


def each(kind, name, values):
    """Constructions with wrong values of one setting."""
    return [partial(kind, **{name: value}) for value in values]


def lengths(kind, name, schedule, values):
    """Lists for other numbers of stages than 3."""
    return [partial(PipelineRules, schedule, kind(**{name: value}), 3, 1) for value in values]


def takes(method, *optimizers):
    return [partial(method.check_optimizer, optimizer) for optimizer in optimizers]


def by_delay(method, schedule):
    return partial(PipelineRules(schedule, method, 2, 1).divide_rates_by_delay, 9)


def replicated(schedule, *replicas):
    return RoundRobin(schedule, Replicas(replicas))


def rules(case, *rest):
    return partial(PipelineRules, METHODS[case].schedule, METHODS[case].method, *rest)


ALONE = OneFOneB(depth=1)
MAXIMIZING = SGD(parameters(), lr=0.1, momentum=0.9, maximize=True)
NESTEROV = SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True)
PARTLY_PLAIN = SGD(groups_of_two(momentum=0.0), lr=0.1, momentum=0.9)

SETTINGS = {
    r"method\.delay=": each(Delayed, "delay", [-1, 1.5, "3", None, [], [1, -2], True])
    + lengths(Delayed, "delay", ALONE, [[1, 2], [1, 2, 3, 4]]),
    r"method\.mean_delay=": each(Hogwild, "mean_delay", [0, -1.0, [2.0, 0.0], math.nan, math.inf, "fast"])
    + lengths(Hogwild, "mean_delay", ALONE, [[], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]),
    r"method\.max_delay=": each(Hogwild, "max_delay", [-1.0, math.nan, math.inf]),
    r"method\.anneal_steps=": each(Hogwild, "anneal_steps", [0]) + each(PipeMare, "anneal_steps", [0, -3, 2.5, "7"]),
    r"method\.staleness_decay=": each(ITiMePReSt, "staleness_decay", [0, -0.1, "0.1", math.nan, math.inf, True]),
    r"method\.decay=": each(PipeMare, "decay", [0, 1, -0.5, 1.5, "half", None]),
    r"method\.stage_lr_scale=": each(
        Stale, "stage_lr_scale", [[1.0, 0.0], [-1], ["1"], [None], [math.inf], 0.5, "fast"]
    )
    + lengths(Stale, "stage_lr_scale", PipelinedBackprop(), [[], [1.0], [1.0] * 4]),
    r"method\.prediction=msnag: .*constant, scheduled, decaying": each(PipeOptim, "prediction", ["msnag"]),
    r"schedule\.depth=": each(OneFOneB, "depth", [0, -1, 2.5, "4"]),
    r"schedule\.depth=true": each(OneFOneB, "depth", [True]),
    r"schedule\.chunks=1: .*1f1b_flush and 1f1b": each(Interleaved1F1B, "chunks", [1]),
    r"schedule\.chunks=": each(InterleavedContinuous1F1B, "chunks", ["2"]),
    r"schedule\.chunks=2.5: .*schedule=gpipe": each(LoopedBFS, "chunks", [2.5]),
    r"schedule\.times=": each(
        OneFOneBV, "times", [[3, 3], [1, 1, 0], [1, 1, -2], [1, 1.5, 1], [1, 1, True], "332", 3, None]
    ),
    r"loss\.label_smoothing=": each(TokenCrossEntropy, "label_smoothing", [1.5]),
    r"loss\.auxiliary=-1": each(CrossEntropy, "auxiliary", [-1]),
}
OPTIMIZERS = {
    "Rprop has no": takes(PipeOptim(), Rprop(parameters())),
    "Adamax has no": takes(PipeOptim(), Adamax(parameters())),
    "Adadelta has no": takes(PipeOptim(), Adadelta(parameters())),
    "amsgrad=true .*SGD, Adam": takes(PipeOptim(), Adam(parameters(), amsgrad=True), AdamW(parameters(), amsgrad=True)),
    "maximize=true": takes(PipeOptim(), MAXIMIZING),
    "optimizer.groups: amsgrad=true": takes(PipeOptim(), Adam(groups_of_two(amsgrad=True))),
    "method.prediction=decaying: SGD without plain momentum .*scheduled": takes(
        PipeOptim("decaying"), SGD(parameters(), lr=0.1), NESTEROV, PARTLY_PLAIN
    ),
    "method.prediction=decaying: .*scheduled": takes(
        PipeOptim("decaying"), NAdam(parameters()), RMSprop(parameters(), momentum=0.9), Adagrad(parameters())
    ),
    "method.prediction=decaying: momentum=1": takes(PipeOptim("decaying"), SGD(parameters(), lr=0.1, momentum=1.0)),
    "method=spectrain .*optimizer=sgdm, or method=pipeoptim": takes(
        SpecTrain(), Adam(parameters()), RMSprop(parameters(), momentum=0.9), NESTEROV
    ),
    "method=spectrain .*momentum=0": takes(SpecTrain(), SGD(parameters(), lr=0.1)),
    "method=spectrain .*of some parameters": takes(SpecTrain(), PARTLY_PLAIN),
    "method=spectrain .*optimizer=sgdm, or method=lwp": takes(SpecTrain(), MAXIMIZING, Rprop(parameters())),
}
TOGETHER = {
    r"lr_by_delay=9: .*method\.t1=false": [
        by_delay(PipeMare(), PipeMareSchedule()), by_delay(Hogwild(t1=True), ALONE),
    ],
    "lr_by_delay=9: .*method=hogwild method.t1=true": [by_delay(Hogwild(), ALONE)],
    "lr_by_delay=9: .*method=stale": [by_delay(Stale([0.5, 1.0]), PipelinedBackprop())],
    r"train\.microbatches=2 .*partition\.stages=3": [rules("pipedream_2bw", 3, 2)],
    r"train\.recompute_boundaries: stage . .*room for \d": [
        rules(case, 4, 4, RecomputeSegments((0,), 4)) for case in ("pipedream", "v_timeprest", "pipedream_2bw")
    ],
    r"partition\.stages=1": [partial(ASP(replicas=replicas).check, 1, 1) for replicas in (None, [2, 1], 3)],
    r"partition\.stages=2: schedule=data_parallel": [partial(DataParallel().check, 2, 1)],
    "partition.stages=5: .*partition.stages=4 or 6 works": [partial(Interleaved1F1B(2).check, 5, 4)],
    "=4: .*partition.stages=3 or 6 works": [partial(InterleavedContinuous1F1B(3).check, 4, 4)],
    "=1: .*partition.stages=2 works": [partial(LoopedBFS().check, 1, 4)],
    "=3: .*partition.stages=2 or 4 works": [partial(ZBV().check, 3, 4)],
    "=7: .*partition.stages=6 or 8 works": [partial(OneFOneBV().check, 7, 4)],
    "train.microbatches=6: .*train.microbatches=4 or 8 works": [partial(Interleaved1F1B().check, 8, 6)],
    "=1: .*train.microbatches=4 works": [partial(InterleavedContinuous1F1B().check, 8, 1)],
    r"partition\.replicas=\[2, 2\]: schedule=split_1f1b_flush splits backwards": [
        partial(PipelineRules, replicated(splitting(OneFOneBFlush()), 2, 2), Synchronous(), 2, 1)
    ],
    r"replicas=\[2, 2, 2, 2\]: .*schedule=1f1b_flush": [partial(replicated(ZBV(), 2, 2, 2, 2).check, 4, 4)],
    r"replicas=\[2, 2, 2, 2\]: schedule=looped_bfs": [partial(replicated(LoopedBFS(), 2, 2, 2, 2).check, 4, 4)],
    "schedule=1f1b_v .* or use schedule=1f1b$": [partial(replicated(OneFOneBV(), 2, 2, 2, 2).check, 4, 4)],
    "schedule=1f1b_2bw requires equal replica counts": [partial(replicated(OneFOneB2BW(), 2, 1).check, 2, 2)],
    r"schedule\.depth=3: .*schedule\.depth=null": [partial(replicated(OneFOneB(depth=3), 2, 1).check, 2, 1)],
}  # fmt: skip


@pytest.mark.parametrize(("named", "call"), rows({**SETTINGS, **OPTIMIZERS, **TOGETHER}))
def test_what_cannot_work_is_refused_by_name(named, call):
    assert_refused(named, call)


RULED = [
    *(SGD(parameters(), lr=0.1), NESTEROV, PARTLY_PLAIN, Adam(parameters()), AdamW(parameters()), NAdam(parameters())),
    *(RMSprop(parameters(), momentum=0.9, centered=True), Adagrad(parameters())),
]


def test_what_a_refusal_advises_is_taken():
    for call in (*takes(PipeOptim(), *RULED), *takes(PipeOptim("scheduled"), *RULED)):
        call()
    rules("pipedream_2bw", 3, 3)()
    rules("pipedream", 4, 4, RecomputeSegments.of_single_stages(4))()
    replicated(OneFOneB2BW(), 2, 2).check(2, 2)
    PipelineRules(PipelinedBackprop(), Stale([1.0, 0.5]), 2, 1)
