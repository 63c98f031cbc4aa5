"""Simulated against distributed, bit for bit: D 1..4, N 1, 2, 4, every method."""

import itertools

import pytest
from cluster import METHODS, SYNCHRONOUS, distributed, job, simulated

MICROBATCHES = (1, 2, 4)


@pytest.mark.parametrize("stages", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_simulated_and_distributed_runs_are_equal_bit_for_bit(tmp_path, stages):
    cases = list(itertools.product(METHODS, MICROBATCHES))
    jobs = [
        job(tmp_path / f"{method}-{n}-distributed", method, stages, train={"microbatches": n}) for method, n in cases
    ]
    results = distributed(jobs)
    for (method, n), result in zip(cases, results, strict=True):
        expected = simulated(job(tmp_path / f"{method}-{n}-simulated", method, stages, train={"microbatches": n}))
        for field in ("weights_sha256", "loss_sha256", "steps", "final", "best"):
            assert result[field] == expected[field], f"{method}, D={stages}, N={n}: {field}"
        measured = ("weight_versions_max", "weight_bytes_peak", "forward_staleness", "backward_staleness")
        for ours, theirs in zip(result["per_stage"], expected["per_stage"], strict=True):
            assert {m: ours[m] for m in measured} == {m: theirs[m] for m in measured}, f"{method}, D={stages}, N={n}"


def test_two_runs_with_one_seed_are_equal_and_with_another_are_not(tmp_path):
    first, second = (simulated(job(tmp_path / name, "pipeoptim", 3)) for name in ("a", "b"))
    other = simulated(job(tmp_path / "c", "pipeoptim", 3, seed=4))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["weights_sha256"] != other["weights_sha256"]


def test_asynchronous_methods_differ_from_each_other(tmp_path):
    hashes = {method: simulated(job(tmp_path / method, method, 3))["weights_sha256"] for method in METHODS}
    asynchronous = [hashes[method] for method in METHODS if method not in SYNCHRONOUS]
    assert len(set(asynchronous)) == len(asynchronous)
    assert hashes["gpipe"] not in asynchronous


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_equal_bits_with_other_optimizers_and_clipping(tmp_path, optimizer):
    changes = {
        "optimizer": {"_target_": f"torch.optim.{optimizer}", "lr": 1e-2, "clip_norm": 0.5, "momentum": None},
        "train": {"microbatches": 2},
    }
    methods = ["gpipe", "pipeoptim", "pipedream"]
    jobs = [job(tmp_path / f"{method}-d", method, 2, **changes) for method in methods]
    for each in jobs:
        del each.config["optimizer"]["momentum"]
    for method, result in zip(methods, distributed(jobs), strict=True):
        twin = job(tmp_path / f"{method}-s", method, 2, **changes)
        del twin.config["optimizer"]["momentum"]
        assert result["weights_sha256"] == simulated(twin)["weights_sha256"], method
