"""How layers compute: in which precision, in which memory format, and whether they are compiled."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipetrain.tensors import Tensors

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_VARIANTS = 4096
"""Of one layer's code, by the shapes that it is compiled for; torch allows eight, and then no longer compiles."""


@dataclass(frozen=True)
class Arithmetic:
    """How the layers of a model compute, the same in all stages.

    Weights, their versions and gradients are float32 in each precision. Under bf16 and fp16 torch.autocast has each
    operation cast what it needs, and every forward casts the weights that it is given: autocast's own cache would hand
    out casts of an older version.

    Attributes:
        precision: fp32, bf16 or fp16.
        channels_last: whether pictures and the weights of convolutions have their channels last in memory.
        compiled: whether torch.compile compiles each layer.
    """

    precision: str = "fp32"
    channels_last: bool = False
    compiled: bool = False

    @property
    def mixed(self) -> bool:
        """Whether some operations compute in less than float32."""
        return self.precision != "fp32"

    @property
    def scales_loss(self) -> bool:
        """Whether gradients may be too small for the precision, so that the loss is scaled up."""
        return self.precision == "fp16"

    def computing(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context in which layers compute."""
        if not self.mixed:
            return nullcontext()
        return torch.autocast(device.type, _DTYPES[self.precision], cache_enabled=False)

    def given(self, tensors: Tensors) -> Tensors:
        """A model's inputs in the memory format that its layers want."""
        if not self.channels_last:
            return tensors
        return tuple(t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in tensors)

    def returned(self, tensors: Tensors) -> Tensors:
        """A model's outputs as losses and metrics get them: in float32."""
        return tuple(t.float() if t.dtype in _DTYPES.values() else t for t in tensors) if self.mixed else tensors

    def arrange(self, module: nn.Module) -> None:
        """Puts the weights of a module into the memory format, in place."""
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def callables(self, layers: Sequence[nn.Module]) -> list[Callable[..., Any]]:
        """What to call in the place of the layers.

        Each is compiled by itself and for each shape anew: what torch compiles for shapes that change depends on those
        that came before, and these differ between executors.
        """
        if not self.compiled:
            return list(layers)
        torch._inductor.config.compile_threads = 1  # of each stage's process, which has a core of its own at most
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = _VARIANTS
        return [torch.compile(layer, dynamic=False) for layer in layers]
