"""Several stages in a process: equal bits wherever they run, resumed, under another placement, and in phases."""

from dataclasses import replace
from itertools import product

import pytest
from support import deep_model, running_text
from support.equal_bits import TIED, assert_same, bits, both_ways, same_resumed
from support.methods import MethodCase, takes
from support.worker_pool import distributed, job, phase, plan_of, simulated

from pipetrain.engine.methods import Method
from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.methods.lwp import LinearWeightPrediction
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.methods.spectrain import SpecTrain
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.interleaved import Interleaved1F1B, InterleavedContinuous1F1B
from pipetrain.engine.schedules.looped_bfs import LoopedBFS
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.zero_bubble import ZBH1, ZBV
from pipetrain.runner.training.checkpoint import store

ASYNCHRONOUS: dict[str, Method] = {
    "naive_async": NaiveAsync(),
    "pipedream": PipeDream(),
    "vertical_sync": PipeDream(vertical_sync=True),
    "pipeoptim": PipeOptim(),
    "spectrain": SpecTrain(),
    "stale": Stale(),
    "pipemare": PipeMare(anneal_steps=7, decay=0.3),
    "lwp": LinearWeightPrediction(stash=True),
    "delayed": Delayed(2),
}
DRAINED = {"interleaved": Interleaved1F1B(), "bfs": LoopedBFS(), "zb_h1": ZBH1(), "zb_v": ZBV()}
CONTINUOUS = {"interleaved": InterleavedContinuous1F1B(), "v": OneFOneBV()}
CLIPPED = {"clip_norm": 0.5}
LONGER = {"dataset": {"train": 100, "eval": 60}, "eval": {"batch_size": 2}, "checkpoint": {"every_minutes": 1e-4}}
"""A run that saves several times."""


def check(folder, cases):
    """name -> (case, stages, settings): runs each in both executors; (summaries, simulated ones) by name."""
    pairs = both_ways([job(folder / name, case, D, **changes) for name, (case, D, changes) in cases.items()])
    for name, (ours, theirs) in zip(cases, pairs, strict=True):
        for field in ("weight_versions_max", "weight_bytes_peak", "forward_staleness", "backward_staleness"):
            assert [each[field] for each in ours["per_stage"]] == [each[field] for each in theirs["per_stage"]], name
    return dict(zip(cases, pairs, strict=True))


def train(N, **changes):
    return {"train": {"microbatches": N, "epochs": 1}, **changes}


def test_each_placement_has_equal_bits_in_both_executors(tmp_path):
    cases = {
        "drained": (MethodCase(Synchronous(), Interleaved1F1B()), 4, train(2, optimizer=CLIPPED)),
        "continuous": (MethodCase(PipeOptim(), InterleavedContinuous1F1B()), 4, train(2)),
        "v": (MethodCase(PipeDream(), OneFOneBV()), 4, train(1)),
        "v of short W": (MethodCase(PipeDream(), OneFOneBV([3, 3, 2])), 4, train(1)),
        "split": (MethodCase(Synchronous(), ZBH1()), 2, train(2)),
        "tied in one process": (MethodCase(Synchronous(), ZBV()), 4, train(2, **TIED)),
    }
    found = check(tmp_path, cases)
    assert found["v"][0]["per_stage"][0]["forward_staleness"] == [1]
    assert found["v of short W"][0]["per_stage"][0]["forward_staleness"] == [2]


def test_every_schedule_of_drained_pipelines_trains_as_gpipe_does(tmp_path):
    reference = simulated(job(tmp_path / "gpipe", MethodCase(Synchronous(), GPipe()), 4, **train(4)))
    for name, schedule in DRAINED.items():
        found = simulated(job(tmp_path / name, MethodCase(Synchronous(), schedule), 4, **train(4)))
        assert found["final"]["loss"] == pytest.approx(reference["final"]["loss"], rel=1e-4), name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", CONTINUOUS)
@pytest.mark.parametrize("D", [2, 4, 6])
def test_every_asynchronous_method_has_equal_bits(tmp_path, schedule, D):
    cases = {
        f"{name}-{N}": (MethodCase(method, CONTINUOUS[schedule]), D, train(N))
        for k, (name, method) in enumerate(ASYNCHRONOUS.items())
        for N in (1, 2, 3, 4)
        if takes(CONTINUOUS[schedule], D, N) and (k + N) % 2
    }
    check(tmp_path, cases)


def deep(folder, method, schedule, N):
    """A job of eight stages."""
    case, changes = MethodCase(method, schedule), train(N, model={"_target_": "support.deep_model.build"})
    made = job(folder, case, 4, **changes)
    return replace(made, plan=plan_of(deep_model.bounds()), placement=schedule.placement(8))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", CONTINUOUS)
def test_every_asynchronous_method_has_equal_bits_on_eight_stages(tmp_path, schedule):
    chosen = CONTINUOUS[schedule]
    both_ways([
        deep(tmp_path / f"{name}-{N}", method, chosen, N)
        for k, (name, method) in enumerate(ASYNCHRONOUS.items())
        for N in (1, 2, 3, 4)
        if takes(chosen, 8, N) and (schedule != "v" or (k + N) % 2)
    ])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("schedule", DRAINED)
def test_drained_schedules_have_equal_bits(tmp_path, schedule):
    variants = {
        "plain": {},
        "clipped": {"optimizer": CLIPPED},
        "tied": TIED,
        "fp16": {"train": {"precision": "fp16"}},
        "recomputing": {"train": {"recompute": True}},
        "text": running_text.SECTIONS,
    }
    cases = {}
    for (name, changes), N in product(variants.items(), (2, 4)):
        settings = {**changes, "train": {**changes.get("train", {}), "microbatches": N, "epochs": 1}}
        cases[f"{name}-{N}"] = (MethodCase(Synchronous(), DRAINED[schedule]), 4, settings)
    check(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", CONTINUOUS)
def test_clipping_precision_recomputation_and_carried_state_keep_equal_bits(tmp_path, schedule):
    variants = {
        "clipped": {"optimizer": CLIPPED},
        "bf16": {"train": {"precision": "bf16"}},
        "fp16": {"train": {"precision": "fp16"}},
        "recomputing": {"train": {"recompute": True}},
        "text": running_text.SECTIONS,
        "averaged": {"train": {"ema": 0.9}},
        "checkpoints": {"checkpoint": {"every_steps": 2}},
    }
    cases = {}
    for (name, changes), method in product(variants.items(), ("pipedream", "pipeoptim")):
        settings = {**changes, "train": {**changes.get("train", {}), "microbatches": 2, "epochs": 1}}
        cases[f"{name}-{method}"] = (MethodCase(ASYNCHRONOUS[method], CONTINUOUS[schedule]), 4, settings)
    check(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", CONTINUOUS)
def test_resumed_run_has_the_bits_of_the_whole(tmp_path, schedule):
    for method in ("pipedream", "pipeoptim", "pipemare"):
        case = MethodCase(ASYNCHRONOUS[method], CONTINUOUS[schedule])
        changes = {"checkpoint": {"every_steps": 4}, "train": {"microbatches": 2}}
        whole = same_resumed(tmp_path / method, case, 4, **changes)
        half = store.checkpoints(tmp_path / method / "whole")[0]
        again = distributed([job(tmp_path / method / "distributed", case, 4, resume=half, **changes)])
        assert_same(again[0], whole)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", DRAINED)
def test_pausing_in_training_and_in_evaluations_changes_no_bits(tmp_path, schedule):
    case, changes = MethodCase(Synchronous(), DRAINED[schedule]), {**LONGER, "train": {"microbatches": 2}}
    paused = job(tmp_path / "paused", case, 4, **changes)
    whole = job(tmp_path / "whole", case, 4, **{**changes, "checkpoint": {}})
    assert_same(distributed([paused])[0], simulated(whole))
    assert len(store.checkpoints(paused.run.path)) > 1


@pytest.mark.slow
def test_checkpoint_resumes_under_another_placement(tmp_path):
    """By stage: two stages in each of two processes, then one in each of four, and the other way round."""
    cases = [MethodCase(Synchronous(), schedule) for schedule in (Interleaved1F1B(), ZBV(), OneFOneBFlush())]
    changes = {"checkpoint": {"every_steps": 6}, "train": {"microbatches": 2}}
    for name, first, second in (("a", 0, 1), ("b", 1, 2), ("c", 2, 0)):
        distributed([job(tmp_path / name, cases[first], 4, **changes)])
        half = store.checkpoints(tmp_path / name)[0]
        resumed = [job(tmp_path / f"{name}-{way}", cases[second], 4, resume=half, **changes) for way in ("d", "s")]
        assert_same(distributed(resumed[:1])[0], simulated(resumed[1]))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", CONTINUOUS)
def test_phases_keep_equal_bits_and_the_placement(tmp_path, schedule):
    drained = {"interleaved": Interleaved1F1B(), "v": ZBV()}[schedule]
    case = MethodCase(PipeOptim(), CONTINUOUS[schedule])
    phases = [phase(case, steps=5), phase(MethodCase(Synchronous(), drained))]
    check(tmp_path, {"phases": (case, 4, {"phases": phases, "train": {"microbatches": 2}})})


@pytest.mark.slow
def test_split_backward_sums_the_gradients_of_a_whole_one(tmp_path):
    """The same bits as 1F1B with a flush, whose lists take the microbatches in the same order."""
    for N in (1, 2, 4):
        whole = simulated(job(tmp_path / f"whole{N}", MethodCase(Synchronous(), OneFOneBFlush()), 4, **train(N)))
        for schedule in (ZBH1(), ZBV()):
            split = job(tmp_path / f"{schedule.name}{N}", MethodCase(Synchronous(), schedule), 4, **train(N))
            assert bits(simulated(split)) == bits(whole), (schedule.name, N)


@pytest.mark.slow
def test_fewer_minibatches_are_in_flight_than_with_one_stage_each(tmp_path):
    """Four processes with one stage each against two in a V, of half the size."""
    one = simulated(job(tmp_path / "one", MethodCase(PipeDream(), OneFOneB()), 4, **train(1)))
    v = simulated(deep(tmp_path / "v", PipeDream(), OneFOneBV(), 1))
    assert [each["forward_staleness"] for each in one["per_stage"]] == [[3], [2], [1], [0]]
    assert [each["forward_staleness"] for each in v["per_stage"]] == [[2], [2], [2], [1], [1], [1], [0], [0]]
