"""Options of the layers' computation: precision, memory format, compilation, and torch's switches."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipetrain.engine.tensors import Tensors

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_VARIANTS = 4096
"""Compiled variants of a layer's code, one for each shape; torch allows eight, and then no longer compiles."""


@dataclass(frozen=True)
class ComputeOptions:
    """Options of the layers' computation, the same in all stages.

    Weights, their versions and gradients are float32 in each precision. Under bf16 and fp16 torch.autocast casts per
    operation, and every forward casts the weights that it is given: autocast's own cache would return casts of an older
    version.

    Attributes:
        precision: fp32, bf16 or fp16.
        channels_last: True if pictures and the weights of convolutions have their channels last in memory.
        compiled: True if torch.compile compiles each layer.
    """

    precision: str = "fp32"
    channels_last: bool = False
    compiled: bool = False

    @property
    def mixed(self) -> bool:
        """True if some operations compute in less than float32."""
        return self.precision != "fp32"

    @property
    def dtype(self) -> torch.dtype:
        """The lowest type in which operations compute."""
        return _DTYPES.get(self.precision, torch.float32)

    def computing(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context in which layers compute."""
        if not self.mixed:
            return nullcontext()
        return torch.autocast(device.type, self.dtype, cache_enabled=False)

    def cast_inputs(self, tensors: Tensors) -> Tensors:
        """A model's inputs in the memory format that its layers want."""
        if not self.channels_last:
            return tensors
        return tuple(t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in tensors)

    def cast_outputs(self, tensors: Tensors) -> Tensors:
        """A model's outputs as losses and metrics get them: in float32."""
        return tuple(t.float() if t.dtype in _DTYPES.values() else t for t in tensors) if self.mixed else tensors

    def prepare(self, module: nn.Module) -> None:
        """Prepares a module in place: its memory format and, in bf16, recurrent layers that compute without cuDNN."""
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.precision == "bf16":
            for layer in module.modules():
                if isinstance(layer, nn.RNNBase):
                    layer.register_forward_pre_hook(_leave_cudnn)
                    layer.register_forward_hook(_return_to_cudnn, always_call=True)

    def callables(self, layers: Sequence[nn.Module]) -> list[Callable[..., Any]]:
        """Functions to call instead of the layers.

        Each is compiled separately, again for each shape: the code that torch compiles for variable shapes depends on
        the shapes before, and these differ between executors.
        """
        if not self.compiled:
            return list(layers)
        torch._inductor.config.compile_threads = 1  # of each stage's process, which has at most one core for itself
        # else kernels are chosen by how long they take
        torch._inductor.config.deterministic = torch.are_deterministic_algorithms_enabled()
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = _VARIANTS
        return [torch.compile(layer, dynamic=False) for layer in layers]


_cudnn_before: list[bool] = []
"""Values of `torch.backends.cudnn.enabled` to restore, one for each recurrent layer that is running."""


def _leave_cudnn(_layer: nn.Module, _inputs: object) -> None:
    """Computes without cuDNN under autocast to bf16: torch has cuDNN compute recurrent layers in fp16 there."""
    _cudnn_before.append(torch.backends.cudnn.enabled)
    if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16:
        torch.backends.cudnn.enabled = False


def _return_to_cudnn(_layer: nn.Module, _inputs: object, _outputs: object) -> None:
    torch.backends.cudnn.enabled = _cudnn_before.pop()


@contextmanager
def switched(kind: str, *, deterministic: bool = False, tf32: bool | None = None) -> Iterator[None]:
    """Computes with torch's switches as a run has them; afterwards they are the caller's again.

    Enter it before the process computes anything: cuBLAS and torch read the environment once.

    Args:
        kind: of the device.
        deterministic: True to allow only operations that give the same bits each time.
        tf32: True to round factors of float32 products to TF32 on CUDA; None for torch's default.

    Raises:
        RuntimeError: an operation has no deterministic implementation.
    """
    with _deterministic(kind) if deterministic else nullcontext(), _with_tf32(kind, tf32=tf32):
        yield


def switches_in_effect(kind: str) -> dict[str, Any]:
    """Switches of this process for a kind of device, by their names in the summary."""
    found: dict[str, Any] = {"deterministic": torch.are_deterministic_algorithms_enabled()}
    if kind == "cuda":
        found["tf32_convolutions"] = torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
        found["tf32_matmul"] = torch.backends.cuda.matmul.fp32_precision == "tf32"
        found["cublas_workspace"] = os.environ.get(_CUBLAS_WORKSPACE)
    return found


@contextmanager
def _deterministic(kind: str) -> Iterator[None]:
    """torch's one switch covers attention, cuDNN and uninitialized memory; cuBLAS has its own variable."""
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    of_cudnn = cudnn.deterministic, cudnn.benchmark
    sets_workspace = kind == "cuda" and _CUBLAS_WORKSPACE not in os.environ
    if sets_workspace:
        os.environ[_CUBLAS_WORKSPACE] = ":4096:8"
    torch.use_deterministic_algorithms(mode=True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    except RuntimeError as error:
        if "use_deterministic_algorithms" not in str(error):
            raise
        raise RuntimeError(f"deterministic=true: {error}") from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.deterministic, cudnn.benchmark = of_cudnn
        if sets_workspace:
            os.environ.pop(_CUBLAS_WORKSPACE, None)


@contextmanager
def _with_tf32(kind: str, *, tf32: bool | None) -> Iterator[None]:
    """Sets the older switches, which set the newer ones, too: what asks the older ones fails where the two differ."""
    if tf32 is None or kind != "cuda":
        yield
        return
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, matmul.fp32_precision
    cudnn.allow_tf32 = matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, matmul.fp32_precision = before


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch computes with `count` threads inside."""
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
