"""Simulated against distributed, bit for bit: D 1..4, N 1..4, every method under every schedule of its family."""

from itertools import product

import pytest
from support import running_text
from support.equal_bits import PARTS, REPLICATED, TIED, both_ways, on_diagonal, replicated, runs_under, schedules_of
from support.methods import DISTINCT, MethodCase, fitting
from support.worker_pool import job, simulated

from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.schedules.one_f_one_b import OneFOneB

ARITHMETIC = {
    "gpipe": {"precision": "fp16"},
    "pipedream": {"precision": "fp16", "channels_last": True},
    "pipeoptim": {"precision": "bf16"},
    "pipemare": {"precision": "bf16", "recompute": True},
    "naive_async": {"channels_last": True},
}


def test_each_kind_of_method_has_equal_bits_in_both_executors(tmp_path):
    """One epoch, one number of microbatches each, and the default schedule; the others are slower."""
    kinds = {"gpipe": 3, "pipedream": 1, "pipedream_2bw": 2, "pipeoptim": 4, "pipemare": 1, "i_timeprest": 2}
    cases = {method: (method, {"train": {"microbatches": n, "epochs": 1}}) for method, n in kinds.items()}
    check(tmp_path, 2, cases)


@pytest.mark.slow
def test_tied_weights_and_precision_have_equal_bits(tmp_path):
    cases = {}
    for method in ("gpipe", "pipedream_flush"):
        cases[f"{method}-tied"] = (method, {**TIED, "train": {"microbatches": 2}})
    for method, arithmetic in ARITHMETIC.items():
        cases[f"{method}-arithmetic"] = (method, {"train": {"microbatches": 2, **arithmetic}})
    check(tmp_path, 2, cases)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rest", PARTS)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_every_method_and_schedule_has_equal_bits(tmp_path, stages, rest):
    """Each pair of a method and a schedule on a diagonal of (D, N), so both parts have every D and every N."""
    pairs = [(method, schedule) for method in DISTINCT for schedule in schedules_of(method)]
    cases = {
        f"{method}-{schedule}-{microbatches}": (
            method,
            {"schedule": schedules_of(method)[schedule], "train": {"microbatches": microbatches}},
        )
        for k, (method, schedule) in enumerate(pairs)
        if ((k + stages) % 3 != 0) == rest
        for microbatches in (1, 2, 3, 4)
        if on_diagonal(k, stages, microbatches) and runs_under(schedules_of(method)[schedule], stages, microbatches)
    }
    check(tmp_path, stages, cases)


RECOMPUTED = ("gpipe", "pipedream", "pipeoptim", "pipemare", "i_timeprest")


@pytest.mark.slow
def test_recomputation_keeps_equal_bits_across_executors(tmp_path):
    stages = 4
    settings = {"train": {"microbatches": 2, "recompute": True}}
    found = check(tmp_path, stages, {method: (method, settings) for method in RECOMPUTED})
    for method in ("gpipe", "pipedream", "i_timeprest"):
        plain = simulated(job(tmp_path / f"{method}-plain", method, stages, train={"microbatches": 2}))
        assert found[method]["weights_sha256"] == plain["weights_sha256"]


DROPPING = {
    "_target_": "pipetrain.zoo.models.awd_lstm.build", "vocabulary_size": running_text.TOKENS, "embedding": 5,
    "hidden": 6, "layers": 5, "word_dropout": 0.1, "weight_drop": 0.3,
}  # fmt: skip
"""A model with every kind of dropout, that of recurrent weights included."""


@pytest.mark.slow
def test_carried_state_keeps_equal_bits_under_every_method(tmp_path):
    """Interrupted in the middle of each epoch by a drain, and by an evaluation at its end."""
    cases, stages = {}, 3
    for k, method in enumerate(DISTINCT):
        n = 1 + k % 2 if fitting(method, stages, 1 + k % 2) else 4
        train = {"microbatches": n, "recompute": k % 3 == 0}
        cases[method] = (method, {**running_text.SECTIONS, "train": train, "checkpoint": {"every_steps": 4}})
    dropping = {**running_text.SECTIONS, "model": DROPPING}
    cases |= {f"{method}-dropping": (method, dropping) for method in ("pipeoptim", "pipemare", "i_timeprest")}
    check(tmp_path, stages, cases)


COMPILED = {
    "model": {**TIED["model"], "untie": True},
    "dataset": {"train": 20, "eval": 4},  # minibatches of one size: each is compiled anew
}


@pytest.mark.slow
def test_compiled_layers_have_equal_bits_and_learn_as_plain_ones(tmp_path):
    train = {"compile": True, "precision": "bf16"}
    found = check(tmp_path, 2, {"compiled": ("pipeoptim", {**COMPILED, "train": train})})
    plain = simulated(job(tmp_path / "plain", "pipeoptim", 2, **COMPILED, train={**train, "compile": False}))
    assert found["compiled"]["final"]["loss"] == pytest.approx(plain["final"]["loss"], rel=0.05)


def check(folder, stages, cases):
    """name -> (method, changed settings): runs each in both ways; the summaries by name."""
    return check_all(folder, {name: (method, stages, changes) for name, (method, changes) in cases.items()})


def check_all(folder, cases):
    """The same of name -> (method, stages, changed settings), in one start of the processes."""
    pairs = both_ways([job(folder / name, method, D, **changes) for name, (method, D, changes) in cases.items()])
    for name, (result, expected) in zip(cases, pairs, strict=True):
        measured = ("weight_versions_max", "weight_bytes_peak", "forward_staleness", "backward_staleness")
        for ours, theirs in zip(result["per_stage"], expected["per_stage"], strict=True):
            assert {m: ours[m] for m in measured} == {m: theirs[m] for m in measured}, name
    return {name: result for name, (result, _) in zip(cases, pairs, strict=True)}


def test_equal_seeds_give_equal_bits_and_others_do_not(tmp_path):
    first, second = (simulated(job(tmp_path / name, "pipeoptim", 3)) for name in ("a", "b"))
    other = simulated(job(tmp_path / "c", "pipeoptim", 3, seed=4))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["weights_sha256"] != other["weights_sha256"]


@pytest.mark.slow
def test_adam_with_clipping_has_equal_bits_in_both_executors(tmp_path):
    cases = {}
    for optimizer in ("Adam", "AdamW"):
        chosen = {"_target_": f"torch.optim.{optimizer}", "lr": 1e-2, "clip_norm": 0.5, "weight_decay": 5e-4}
        for method in ("gpipe", "pipeoptim", "pipedream"):
            cases[f"{method}-{optimizer}"] = (method, {"optimizer": chosen, "train": {"microbatches": 2}})
    check(tmp_path, 2, cases)


OPTIMIZERS = {
    "muon": {"_target_": "pipetrain.zoo.optim.matrices.Muon", "lr": 0.02},
    "soap": {"_target_": "pipetrain.zoo.optim.matrices.Soap", "lr": 0.01, "frequency": 2},
    "feedback": {"error_feedback": 1.0, "lr": 0.02},
}
TOLERANT = {
    **{name: name for name in ("pipedream", "naive_async", "timeprest", "pipedream_2bw", "pipemare", "gpipe")},
    "delayed": MethodCase(Delayed(delay=2), OneFOneB(depth=1)),
}
"""Methods that go with every optimizer."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_delay_tolerant_optimizers_have_equal_bits(tmp_path):
    """Every optimizer with every method; stages and microbatches take turns."""
    cases = {}
    for k, (optimizer, method) in enumerate(product(OPTIMIZERS, TOLERANT)):
        stages, n = 2 + k % 3, 1 + k % 4
        n = n if fitting(TOLERANT[method], stages, n) else stages
        cases[f"{optimizer}-{method}"] = (TOLERANT[method], stages, with_optimizer(optimizer, n))
    check_all(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 6])
def test_delay_tolerant_optimizers_have_equal_bits_at_every_depth(tmp_path, stages):
    """Every optimizer and method on a diagonal of (D, N)."""
    cases = {
        f"{optimizer}-{method}-{n}": (TOLERANT[method], with_optimizer(optimizer, n))
        for k, (optimizer, method) in enumerate(product(OPTIMIZERS, TOLERANT))
        for n in (1, 2, 3, 4)
        if on_diagonal(k, stages, n) and fitting(TOLERANT[method], stages, n)
    }
    check(tmp_path, stages, cases)


def with_optimizer(name, microbatches):
    return {"optimizer": OPTIMIZERS[name], "train": {"microbatches": microbatches, "epochs": 1}}


@pytest.mark.slow
def test_delay_tolerant_optimizers_have_equal_bits_on_replicas(tmp_path):
    spread = (((2, 1), "pipedream", 1), ((1, 2), "gpipe", 2), ((2, 2), "pipedream", 2))
    check_replicas(
        tmp_path,
        {
            (name, *case): replicated(*case, optimizer=optimizer)
            for name, optimizer in OPTIMIZERS.items()
            for case in spread
        },
    )


DIAGONAL = [case for k, case in enumerate(REPLICATED) if (k + k // 8) % 4 == 0]
"""Two cases of each vector of replicas, three of each method, six of each number of microbatches."""
CHECKPOINTED = {"model": {"_target_": "support.checkpointed_model.build"}}


@pytest.mark.slow
def test_replicated_stages_have_equal_bits_in_both_executors(tmp_path):
    cases = {case: replicated(*case) for case in DIAGONAL}
    cases["checkpointed"] = replicated((1, 2), "pipedream", 2, **CHECKPOINTED)
    clipped = {"optimizer": {"clip_norm": 0.05}, "train": {"epochs": 8}}  # norms may be equal in any order
    cases["clipped"] = replicated((2,), "gpipe", 1, **clipped)
    check_replicas(tmp_path, cases)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_every_method_has_equal_bits_on_all_replicas(tmp_path):
    check_replicas(tmp_path, {case: replicated(*case) for case in REPLICATED})


def check_replicas(folder, cases):
    """name -> (method, stages, settings): runs all distributed, in one start of the processes, and each simulated."""
    jobs = [job(folder / str(name), method, stages, **more) for name, (method, stages, more) in cases.items()]
    for name, pair in zip(cases, both_ways(jobs), strict=True):
        staleness = [[stage["forward_staleness"] for stage in each["per_stage"]] for each in pair]
        assert staleness[0] == staleness[1], name
