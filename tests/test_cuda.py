"""The runtime on CUDA: several stages on one device, both executors, every method."""

import pytest
import torch
from cluster import METHODS, SYNCHRONOUS, distributed, job, simulated
from command import TINY, run, summary

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def on_cuda(monkeypatch):
    monkeypatch.setenv("DEVICE", "cuda")


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_that_share_a_device_train_as_the_simulator_does(tmp_path, stages):
    cases = [(method, n) for method in METHODS for n in (1, 2)]
    jobs = [job(tmp_path / f"{m}-{n}-d", m, stages, train={"microbatches": n}) for m, n in cases]
    for (method, n), result in zip(cases, distributed(jobs), strict=True):
        expected = simulated(job(tmp_path / f"{method}-{n}-s", method, stages, train={"microbatches": n}))
        # cuDNN may choose another algorithm in another process: equal bits are promised on the CPU alone
        assert result["final"]["loss"] == pytest.approx(expected["final"]["loss"], rel=1e-3), (method, n)
        for ours, theirs in zip(result["per_stage"], expected["per_stage"], strict=True):
            for measured in ("weight_versions_max", "weight_bytes_peak", "forward_staleness", "backward_staleness"):
                assert ours[measured] == theirs[measured], (method, n, measured)
            assert ours["peak_memory_bytes"] > 0
            assert 0 <= ours["idle_share"] <= 1


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_cuda_agrees_with_the_cpu(tmp_path, monkeypatch, method):
    # without dropout, whose generator is another on each device
    lenet = {"model": {"_target_": "pipetrain.models.lenet.build"}, "dataset": {"size": 28}}
    on_device = simulated(job(tmp_path / "cuda", method, 2, **lenet))
    monkeypatch.setenv("DEVICE", "cpu")
    on_host = simulated(job(tmp_path / "cpu", method, 2, **lenet))
    assert on_device["final"]["loss"] == pytest.approx(on_host["final"]["loss"], rel=1e-3)


def test_a_run_and_its_resumption_through_the_command(tmp_path):
    run(tmp_path / "run", *TINY, "device=cuda")
    assert summary(tmp_path / "run")["status"] == "completed"
    run(tmp_path / "more", *TINY, "device=cuda", "train.epochs=3", f"resume={tmp_path / 'run'}")
    assert summary(tmp_path / "more")["steps"] == 15


def test_divergence_ends_the_run(tmp_path):
    run(tmp_path / "run", *TINY, "device=cuda", "optimizer.lr=1e20", code=3)
    assert summary(tmp_path / "run")["status"] == "diverged"
