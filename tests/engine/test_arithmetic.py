"""How layers compute."""

import os

import pytest
import torch
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions, switched, switches_in_effect

CPU = torch.device("cpu")


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_mixed_precision_computes_in_16_bits_returning_float32(precision, dtype):
    arithmetic, layer = ComputeOptions(precision), nn.Linear(3, 2)
    with arithmetic.computing(CPU):
        output = layer(torch.randn(4, 3))
    assert output.dtype == dtype
    assert layer.weight.dtype == torch.float32
    (returned, ids) = arithmetic.cast_outputs((output, torch.arange(3)))
    assert (returned.dtype, ids.dtype) == (torch.float32, torch.int64)


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [("cuda", "bf16", False), ("cpu", "bf16", True), ("cuda", "fp16", True), ("cuda", "fp32", True)],
)
def test_recurrent_layer_leaves_cudnn_only_for_bf16_on_cuda(monkeypatch, device, precision, expected):
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    layer, other, seen = nn.GRU(3, 4), nn.Linear(3, 3), []
    module = nn.Sequential(other, layer)
    for each in (layer, other):
        each.register_forward_hook(lambda *_: seen.append(torch.backends.cudnn.enabled))
    arithmetic = ComputeOptions(precision)
    arithmetic.prepare(module)
    with arithmetic.computing(torch.device(device)):
        module(torch.zeros(2, 3))
        with pytest.raises(RuntimeError):
            layer(torch.zeros(2, 5))
    assert seen == [True, expected]
    assert torch.backends.cudnn.enabled


def test_weight_that_changes_inside_one_context_is_cast_anew():
    layer, x = nn.Linear(3, 2, bias=False), torch.ones(1, 3)
    with ComputeOptions("bf16").computing(CPU):
        layer(x)
        with torch.no_grad():
            layer.weight.data.fill_(2.0)
        assert layer(x).tolist() == [[6.0, 6.0]]


def test_full_precision_changes_nothing():
    tensors = (torch.randn(2, 3, 4, 4), torch.randn(3, dtype=torch.float64))
    plain = ComputeOptions()
    assert plain.cast_inputs(tensors) is tensors
    assert plain.cast_outputs(tensors) is tensors
    assert plain.callables([layer := nn.ReLU()]) == [layer]


def test_channels_last_arranges_pictures_and_convolutions_alone():
    arithmetic = ComputeOptions(channels_last=True)
    module = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Linear(3, 2)])
    arithmetic.prepare(module)
    picture, tokens = arithmetic.cast_inputs((torch.randn(2, 3, 4, 4), torch.zeros(2, 5, dtype=torch.long)))
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert module[1].weight.is_contiguous()
    assert picture.stride() == (48, 1, 12, 3)
    assert tokens.is_contiguous()


def switches():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (cudnn.deterministic, cudnn.benchmark),
        "tf32": (cudnn.allow_tf32, matmul.allow_tf32),
        "newer": (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, matmul.fp32_precision),
        "cublas": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"tf32": True}, {"tf32": False}])
def test_switches_of_a_run_are_the_callers_again_afterwards(monkeypatch, kind, options):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = switches()
    with switched(kind, **options):
        assert (switches() == before) is (not options or (kind == "cpu" and "tf32" in options))
    assert switches() == before
    with pytest.raises(ValueError, match="of the run"), switched(kind, **options):
        raise ValueError("of the run")
    assert switches() == before


def test_deterministic_run_sets_switches_and_keeps_workspace(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with switched("cuda", deterministic=True):
        found = switches()
    assert (found["deterministic"], found["cudnn"], found["cublas"]) == (True, (True, False), ":16:8")


@pytest.mark.parametrize(
    ("tf32", "convolutions", "matmul"), [(None, True, False), (True, True, True), (False, False, False)]
)
def test_switches_in_effect_are_those_of_torch(monkeypatch, tf32, convolutions, matmul):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with switched("cuda", tf32=tf32):
        assert switches_in_effect("cuda") == {
            "deterministic": False, "tf32_convolutions": convolutions, "tf32_matmul": matmul, "cublas_workspace": None
        }  # fmt: skip
        # what asks the older switches, such as torch.compile, would fail if the newer ones differed
        assert torch.backends.cuda.matmul.allow_tf32 is matmul
    with switched("cpu", deterministic=True, tf32=tf32):
        assert switches_in_effect("cpu") == {"deterministic": True}


def test_nondeterministic_operation_error_names_the_setting():
    message = r"^deterministic=true: put_.* does not have a deterministic implementation"
    with pytest.raises(RuntimeError, match=message), switched("cpu", deterministic=True):
        torch.ones(4).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)


def test_other_errors_of_a_deterministic_run_keep_their_words():
    with pytest.raises(RuntimeError, match=r"^out of something$"), switched("cpu", deterministic=True):
        raise RuntimeError("out of something")


def test_bits_of_products_do_not_depend_on_where_operands_lie_in_memory():
    layer, inputs = nn.Linear(6, 8), torch.randn(40, 6)
    for row in range(36):
        part = inputs[row : row + 3]
        assert torch.equal(layer(part), layer(part.clone()))
