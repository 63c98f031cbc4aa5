"""The runtime on one CUDA device: stages that share it, both executors, every method."""

import math

import pytest
import torch
from support import gpu_layers
from support.cli import TINY, fails, run, run_here, summary
from support.methods import DISTINCT, fitting
from support.pipelines import Function, stage_of, unit_gradients
from support.worker_pool import distributed, job, simulated
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain import cli
from pipetrain.data.loader import Loader
from pipetrain.engine.arithmetic import ComputeOptions, switched
from pipetrain.engine.executors.feed import Uploads
from pipetrain.engine.program.planned_operations import Activations
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.zoo.data.images.common import Normalize
from pipetrain.zoo.models.gnmt import BothWays

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_sharing_gpu_agree_with_simulation(tmp_path, stages):
    cases = [(method, n) for method in DISTINCT for n in (1, 2) if fitting(method, stages, n)]
    jobs = [job(tmp_path / f"{m}-{n}-d", m, stages, train={"microbatches": n}) for m, n in cases]
    for (method, n), result in zip(cases, distributed(jobs, gpu_layers.sharing_one), strict=True):
        expected = simulated(job(tmp_path / f"{method}-{n}-s", method, stages, train={"microbatches": n}))
        # cuDNN may choose another algorithm in another process: equal bits are promised under deterministic=true
        assert result["final"]["loss"] == pytest.approx(expected["final"]["loss"], rel=1e-3), (method, n)
        for ours, theirs in zip(result["per_stage"], expected["per_stage"], strict=True):
            for measured in ("weight_versions_max", "weight_bytes_peak", "forward_staleness", "backward_staleness"):
                assert ours[measured] == theirs[measured], (method, n, measured)
            assert ours["peak_memory_bytes"] > 0
            assert 0 <= ours["idle_share"] <= 1
        if stages > 1:
            assert (result["transport"], result["transport_reason"]) == ("gloo", "processes 0 and 1 share a GPU")


@pytest.mark.parametrize("stages", [2, 3])
def test_deterministic_stages_sharing_gpu_equal_simulation(tmp_path, stages):
    methods = [method for method in DISTINCT if fitting(method, stages, 1)]
    exact = {"deterministic": True, "train": {"tf32": False, "epochs": 1}}
    jobs = [job(tmp_path / f"{method}-d", method, stages, **exact) for method in methods]
    for method, result in zip(methods, distributed(jobs, gpu_layers.sharing_one), strict=True):
        expected = simulated(job(tmp_path / f"{method}-s", method, stages, **exact))
        for field in ("weights_sha256", "loss_sha256", "final"):
            assert result[field] == expected[field], f"{method}: {field}"


def test_memory_that_runs_out_on_a_shared_device_is_called_that(tmp_path):
    fails(
        tmp_path / "run", "model=custom", "model._target_=support.faults.failing_layer", "+model.how=memory",
        "+model.nth=6", "partition=explicit", "partition.boundaries=[4]", "device=cuda", "train.epochs=1",
        "dataset.limit=1280",
        message=r"stage 1 failed: OutOfMemoryError: .*\(.*faults.py:\d+\); traceback in ",
    )  # fmt: skip


@pytest.mark.parametrize("method", DISTINCT)
def test_methods_on_cuda_agree_with_the_cpu(tmp_path, monkeypatch, method):
    # without dropout, whose generator is another on each device
    lenet = {"model": {"_target_": "pipetrain.zoo.models.small_images.lenet5"}, "dataset": {"size": 28}}
    exact = {"deterministic": True, "train": {"tf32": False, "microbatches": 2}}
    on_device = simulated(job(tmp_path / "cuda", method, 2, **lenet, **exact))
    monkeypatch.setenv("DEVICE", "cpu")
    on_host = simulated(job(tmp_path / "cpu", method, 2, **lenet, **exact))
    assert on_device["final"]["loss"] == pytest.approx(on_host["final"]["loss"], rel=1e-3)


def loss_on_cuda(folder, *words):
    """The final loss of a simulated run of two stages."""
    common = ("device=cuda", "executor=simulated", "partition.stages=2", "train.microbatches=2", "method=pipedream")
    run_here(folder, *TINY, "dataset=synthetic_images", *common, *words)
    return summary(folder)["final"]["loss"]


@pytest.mark.parametrize("channels_last", ["false", "true"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_loss_is_near_that_of_fp32(tmp_path, precision, channels_last):
    found = loss_on_cuda(tmp_path / "run", f"train.precision={precision}", f"train.channels_last={channels_last}")
    assert found == pytest.approx(loss_on_cuda(tmp_path / "fp32"), rel=0.05)


@pytest.mark.parametrize("optimizer", ["sgd", "sgdm", "adam", "adamw", "nadam", "rmsprop", "adagrad", "lars"])
def test_optimizer_on_cuda_ends_in_a_finite_loss(tmp_path, optimizer):
    assert math.isfinite(loss_on_cuda(tmp_path / "run", f"optimizer={optimizer}"))


def test_recomputation_on_cuda_has_the_same_bits(tmp_path):
    plain, recomputed = (
        simulated(
            job(tmp_path / f"{each}", "pipedream", 2, deterministic=True, train={"tf32": False, "recompute": each})
        )
        for each in (False, True)
    )
    assert recomputed["weights_sha256"] == plain["weights_sha256"]
    assert recomputed["loss_sha256"] == plain["loss_sha256"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("recurrent", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "proj_size": 4}),
        (nn.LSTM, {"proj_size": 4, "bias": False}),
        (nn.GRU, {}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}),
        (nn.RNN, {"num_layers": 2}),
    ],
)
def test_cuda_recurrent_backward_uses_newest_weights(recurrent, options, precision):
    found = []
    on_device = ComputeOptions(precision)
    for device, arithmetic in ((torch.device("cpu"), ComputeOptions()), (torch.device("cuda", 0), on_device)):
        torch.manual_seed(0)
        layer = Function(lambda layer, x: layer(x)[0], recurrent(6, 5, **options))
        arithmetic.prepare(layer)
        stage = stage_of(layer, index=1, device=device)
        stage.module.arithmetic = arithmetic
        x = torch.randn(3, 7, 6).to(device)
        with switched(device.type, tf32=False):
            (output,) = stage.forward((0, 0), (x,), WeightRead(0), Activations.REBOUND, store=False)
            ones = unit_gradients(stage)
            stage.update(9, ones, keep=False, steady=True)
            (gradient,) = stage.backward([(0, 0)], (torch.ones_like(output),), WeightRead(1))
        assert torch.backends.cudnn.enabled
        found.append([gradient.float().cpu(), *(each.cpu() for each in stage.gradients.tensors.values())])
    rtol, atol = (1e-3, 1e-4) if precision == "fp32" else (0.1, 0.1)
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_recurrent_layers_compute_in_the_precision(precision, dtype):
    arithmetic, layer = ComputeOptions(precision), nn.LSTM(6, 5).to("cuda")
    arithmetic.prepare(layer)
    with arithmetic.computing(torch.device("cuda", 0)):
        output, _ = layer(torch.randn(3, 7, 6, device="cuda"))
    assert output.dtype == dtype


def test_deterministic_run_without_tf32_is_reproducible(tmp_path):
    words = [*TINY, "device=cuda", "executor=simulated", "deterministic=true", "train.tf32=false"]
    for name in ("one", "other"):
        run(tmp_path / name, *words)
    one, other = summary(tmp_path / "one"), summary(tmp_path / "other")
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["arithmetic"] == {
        "deterministic": True, "tf32_convolutions": False, "tf32_matmul": False, "cublas_workspace": ":4096:8"
    }  # fmt: skip


@pytest.mark.parametrize("planned", [["partition=auto"], ["executor=simulated"]])
def test_launcher_holds_no_device_memory_after_measuring(tmp_path, planned):
    before = torch.cuda.memory_reserved()
    assert cli.carry_out(["run", *TINY, "device=cuda", *planned, f"hydra.run.dir={tmp_path / 'run'}"]) == 0
    assert torch.cuda.memory_reserved() <= before


def test_command_on_cuda_runs_and_resumes(tmp_path):
    run(tmp_path / "run", *TINY, "device=cuda")
    assert summary(tmp_path / "run")["status"] == "completed"
    run(tmp_path / "more", *TINY, "device=cuda", "train.epochs=3", f"resume={tmp_path / 'run'}")
    assert summary(tmp_path / "more")["steps"] == 15


def test_divergence_on_cuda_ends_the_run(tmp_path):
    run(tmp_path / "run", *TINY, "device=cuda", "optimizer.lr=1e20", code=3)
    assert summary(tmp_path / "run")["status"] == "diverged"


def test_normalization_on_cuda_has_the_bits_of_the_cpu():
    images, normalize = (
        torch.randint(256, (4, 3, 9, 7), dtype=torch.uint8),
        Normalize((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)),
    )
    assert torch.equal(normalize(images.to("cuda")).cpu(), normalize(images))


def test_uploads_of_any_size_arrive_unchanged():
    uploads = Uploads(torch.device("cuda", 0))
    given = [torch.randn(size) for size in (1, 2**24 + 7, 3)] + [torch.randn(6, 5).t(), torch.zeros(0, 3)]
    started = [uploads.start((tensor,)) for tensor in given]
    for (copy,), tensor in zip(map(uploads.hand_over, started), given, strict=True):
        assert (copy.shape, copy.stride()) == (tensor.shape, tensor.stride())
        assert torch.equal(copy.cpu(), tensor)


def test_gnmt_directions_on_cuda_agree_with_packed_samples_on_the_cpu():
    torch.manual_seed(0)
    lstm = nn.LSTM(6, 5, batch_first=True, bidirectional=True)
    layer, x = BothWays(lstm, nn.Dropout(0)), torch.randn(4, 7, 6)
    padding = torch.arange(7) >= torch.tensor([[7], [2], [1], [6]])
    with switched("cuda", tf32=False):
        found = []
        for device in ("cpu", "cuda"):
            layer.to(device).zero_grad()
            y = layer(x.to(device), padding.to(device), padding)[0]
            y.sin().sum().backward()
            found.append([each.cpu() for each in (y.detach(), *(weight.grad for weight in layer.parameters()))])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("workers", [0, 1])
def test_minibatches_are_read_into_page_locked_memory(workers):
    loader = Loader(TensorDataset(torch.arange(8.0), torch.arange(8)), batch_size=4, workers=workers)
    loader.pinned = True
    read = [tensors for minibatch in loader.samples(0) for tensors in minibatch]
    assert all(isinstance(tensors, tuple) and tensors[0].is_pinned() for tensors in read)
    assert len(read) == 4
