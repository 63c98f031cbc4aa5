"""Every method's losses and final weights against the papers' formulas written out by hand."""

from dataclasses import replace

import pytest
import torch
from support import reference
from support.against_reference import (
    BATCH,
    EPOCHS,
    OPTIMIZERS,
    REPEATING,
    assert_close,
    data,
    model,
    run_by_hand,
    run_pipeline,
    run_plain,
)
from support.methods import ASYNCHRONOUS, METHODS, STALE_ALONE, SYNCHRONOUS, MethodCase, fitting, fitting_cases, takes
from support.pipelines import difference, half_decay
from support.quick_cases import quick_cases, slow_unless
from torch import nn

from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.methods.hogwild import Hogwild
from pipetrain.engine.methods.i_timeprest import ITiMePReSt
from pipetrain.engine.methods.spectrain import SpecTrain
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules.interleaved import InterleavedContinuous1F1B
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop


@pytest.mark.parametrize(("rule", "D", "N"), quick_cases())
def test_methods_with_momentum_and_decay_equal_reference(rule, D, N):
    assert_close(run_plain(rule, D, N), run_by_hand(rule, D, N))


OTHER_OPTIMIZERS = {"sgd": (4, 1), "adam": (3, 4), "adamw": (3, 2)}
"""With the stages and microbatches of methods that do not predict."""
PREDICTING = ("pipeoptim", "pipeoptim_backprop")
"""Methods that predict with the optimizer's own formula; in all others it enters through its step alone."""


@pytest.mark.parametrize(
    ("rule", "D", "N", "kind"),
    slow_unless(
        lambda rule, D, N, kind: OTHER_OPTIMIZERS[kind] == (D, N) and (kind == "adam" or rule in PREDICTING),
        [
            (rule, D, N, kind)
            for rule in ("gpipe", *ASYNCHRONOUS)
            for D, N in ((2, 1), (3, 2), (4, 1), (3, 4), (4, 4))
            for kind in OTHER_OPTIMIZERS
            if fitting(rule, D, N) and rule not in ("spectrain", "spectrain_depth")  # which take momentum alone
            if rule in PREDICTING or OTHER_OPTIMIZERS[kind] == (D, N)
        ],
    ),
)
def test_every_method_with_other_optimizers_equals_the_reference(rule, D, N, kind):
    ours, theirs = run_pipeline(rule, D, N, kind), run_by_hand(rule, D, N, kind)
    assert_close(ours, theirs, 1e-9)


@pytest.mark.parametrize("kind", REPEATING)
@pytest.mark.parametrize(("D", "N"), slow_unless(lambda D, _N: D == 3, [(1, 1), (3, 2), (4, 1), (4, 4)]))
def test_pipeoptim_with_further_optimizers_equals_the_reference(D, N, kind):
    ours, theirs = run_pipeline("pipeoptim", D, N, kind), run_by_hand("pipeoptim", D, N, kind)
    assert_close(ours, theirs, 1e-6 if kind == "nadam" else 1e-9)  # torch keeps Πμ in float32


@pytest.mark.parametrize("kind", REPEATING)
def test_reference_changes_with_each_optimizer_prediction(kind):
    predicted, none = run_by_hand("pipeoptim", 4, 1, kind)[1], run_by_hand("naive_async", 4, 1, kind)[1]
    assert difference(predicted, none) > 1e-3


SCALES = (0.5, 0.25, 1.5, 0.75)
DELAYS = {1: [2], 3: [4, 0, 3]}
IN_FLIGHT = [(OneFOneB(depth=1), lambda _D, _r: 1), (PipelinedBackprop(), reference.pipelined_backprop)]


@pytest.mark.parametrize(("D", "N"), [(2, 2), (4, 1), (4, 4)])
@pytest.mark.parametrize(
    ("case", "usual", "changes"),
    [
        (lambda D: MethodCase(Stale(SCALES[:D]), PipelinedBackprop()), "stale", {"scales": SCALES}),
        (lambda _D: MethodCase(ITiMePReSt(0.3), NF1B()), "i_timeprest", {"shrinkage": 0.3}),
    ],
    ids=["rates by stage", "sign-flipping decay"],
)
def test_methods_with_options_equal_the_reference(case, usual, changes, D, N):
    theirs = run_by_hand(replace(reference.FORMULAS[usual], **changes), D, N)
    assert_close(run_pipeline(case(D), D, N), theirs)
    assert difference(theirs[1], run_by_hand(usual, D, N)[1]) > 1e-2


@pytest.mark.parametrize(("D", "N"), [(1, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize(("schedule", "in_flight"), IN_FLIGHT)
@pytest.mark.parametrize("drawn", [True, False], ids=["hogwild", "delayed"])
def test_delays_drawn_or_chosen_equal_the_reference(drawn, schedule, in_flight, D, N):
    method = Hogwild(seed=3, mean_delay=2.0, max_delay=5.0) if drawn else Delayed(DELAYS[D])
    contexts = [StageContext.under(schedule, r, D, N) for r in range(D)]
    formulas = reference.Formulas(in_flight, random_age=True, stashes=True)
    tau = (lambda r, t: method.delay(contexts[r], t)) if drawn else (lambda r, _t: DELAYS[D][r])
    assert_close(run_pipeline(MethodCase(method, schedule), D, N), run_by_hand(formulas, D, N, tau=tau))


# -- recomputation -----------------------------------------------------------------------------------------------------

ALIKE = [name for name, formulas in reference.FORMULAS.items() if formulas.synchronous or formulas.stashes]
"""Those whose recomputation reads what the forward read, so that it gives the same activations."""


SEGMENTED = ("gpipe", "pipemare", "stale", "pipedream_pipemare", "pipeoptim_backprop")


def recomputed_quickly(rule, D, N):
    return ((3, 4) if rule in SEGMENTED else (4, 1)) == (D, N)


@pytest.mark.parametrize(
    ("rule", "D", "N"),
    slow_unless(
        recomputed_quickly, [each for k, each in enumerate(fitting_cases()) if recomputed_quickly(*each) or k % 2]
    ),
)
def test_recomputation_by_single_stages_equals_reference(rule, D, N):
    ours = run_pipeline(rule, D, N, recompute=range(D))
    if rule in ALIKE:  # as the run without, which the first test compares with the reference
        without = run_plain(rule, D, N)
        assert ours[0] == without[0]
        assert all(torch.equal(ours[1][name], value) for name, value in without[1].items())
        return
    assert_close(ours, run_by_hand(rule, D, N, recompute=range(D)))
    if D > 2:
        assert difference(ours[1], run_plain(rule, D, N)[1]) > 1e-5


@pytest.mark.parametrize(
    ("D", "firsts", "N"),
    slow_unless(
        lambda D, firsts, N: D == 4 and (N == 4) == (firsts == (0, 3)) and N != 2,
        [(D, firsts, N) for D, firsts in ((2, (0,)), (4, (0,)), (4, (0, 2)), (4, (0, 3))) for N in (1, 2, 4)],
    ),
)
@pytest.mark.parametrize(
    "rule", slow_unless(SEGMENTED.__contains__, [*SEGMENTED, "pipemare_plain", "pipemare_t1", "pipemare_t2"])
)
def test_recomputation_by_multistage_segments_equals_reference(rule, D, firsts, N):
    ours, theirs = run_pipeline(rule, D, N, recompute=firsts), run_by_hand(rule, D, N, recompute=firsts)
    assert_close(ours, theirs)
    if rule in ALIKE:
        assert difference(ours[1], run_plain(rule, D, N)[1]) == 0.0


@pytest.mark.parametrize("N", [1, 2])
def test_spectrain_with_segment_recomputation_equals_reference(N):
    ours = run_pipeline(MethodCase(SpecTrain(), PipelinedBackprop()), 4, N, recompute=(0, 1))
    formulas = replace(reference.FORMULAS["spectrain"], in_flight=reference.pipelined_backprop)
    theirs = run_by_hand(formulas, 4, N, recompute=(0, 1))
    assert_close(ours, theirs)


def test_reference_differs_from_segmentation_to_segmentation():
    segments = [None, (0, 1, 2, 3), (0, 2), (0,)]
    final = [run_by_hand("pipemare", 4, 1, recompute=each)[1] for each in segments]
    assert min(difference(a, b) for i, a in enumerate(final) for b in final[:i]) > 1e-4


# -- the reference itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [1, 4])
def test_reference_differs_from_asynchronous_method_to_method(N):
    final = {rule: run_by_hand(rule, 4, N)[1] for rule in ("gpipe", *ASYNCHRONOUS) if fitting(rule, 4, N)}
    same = [{"naive_async", "v_timeprest"}] if N == 1 else []  # nf1b of one microbatch is 1f1b
    pairs = [(a, b) for a in final for b in final if a < b and {a, b} not in same]
    assert min(difference(final[a], final[b]) for a, b in pairs) > 1e-4


@pytest.mark.parametrize("rule", [rule for rule in METHODS if rule not in STALE_ALONE])
def test_reference_on_one_stage_equals_plain_torch_training(rule):
    net, (x, y) = model(), data()
    optimizer = OPTIMIZERS["momentum"].torch_optimizer(list(net.parameters()))
    losses = []
    for _ in range(EPOCHS):
        for xs, ys in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.param_groups[0]["lr"] = half_decay(len(losses))
            loss = nn.functional.cross_entropy(net(xs), ys)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    by_formula = run_by_hand(rule, 1, 1)
    assert by_formula[0] == pytest.approx(losses, rel=1e-12)
    assert difference(by_formula[1], dict(net.state_dict())) < 1e-12


@pytest.mark.parametrize("rule", SYNCHRONOUS)
def test_synchronous_methods_equal_the_reference_on_one_stage(rule):
    _, plain = run_by_hand("sequential", 1, 1)
    assert difference(run_plain(rule, 4, 4)[1], plain) < 1e-11


PLACED = {
    "v": (OneFOneBV(), {"in_flight": reference.v_until_gradients}),
    "v of short W": (OneFOneBV([3, 3, 2]), {"in_flight": reference.v_of_short_w_until_gradients}),
    "interleaved": (InterleavedContinuous1F1B(), {"newest": reference.interleaved_newest}),
}
"""Schedules with several stages in a process, and what the reference says of them."""
PLACED_QUICK = ((4, 2), (6, 3))


@pytest.mark.parametrize(
    ("schedule", "rule", "D", "N"),
    slow_unless(
        lambda _schedule, rule, D, N: rule in ("pipedream", "pipeoptim") and (D, N) in PLACED_QUICK,
        [
            (schedule, rule, D, N)
            for schedule, (each, _) in PLACED.items()
            for k, rule in enumerate(ASYNCHRONOUS)
            if METHODS[rule].schedule.family is each.family
            for D in (2, 4, 6)
            for N in (1, 2, 3, 4)
            if takes(each, D, N) and (schedule == "interleaved" or (k + D // 2 + N) % 2 == 0 or (D, N) in PLACED_QUICK)
        ],
    ),
)
def test_methods_on_several_stages_of_a_process_equal_reference(schedule, rule, D, N):
    placed, known = PLACED[schedule]
    ours = run_pipeline(MethodCase(METHODS[rule].method, placed), D, N)
    assert_close(ours, run_by_hand(replace(reference.FORMULAS[rule], **known), D, N))
