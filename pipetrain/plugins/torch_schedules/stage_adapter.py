"""A stage of ours as torch.distributed.pipelining wants one: tensors in, tensors out, all of them differentiable."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.executors.messages.links import Spec
from pipetrain.engine.stage.module import MicrobatchId
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors, bytes_of


class TorchStage(nn.Module):
    """Calls a stage's layers for each microbatch in order.

    The library receives into buffers of fixed shape, moves contiguous tensors only, and expects a gradient for each
    tensor that crosses a cut. So these tensors are made contiguous, integers and masks travel as the values of their
    bytes, and every gradient is a tensor: zeros where autograd has none.

    Args:
        stage: its parameters are this module's, and collect the gradients.
        inputs: of its layers, if it is not the first stage.
        computing: context around each forward.
        copies: True if the previous stage is in this process; its own backward needs the tensors.
    """

    def __init__(self, stage: Stage, inputs: tuple[Spec, ...], computing: Around, *, copies: bool) -> None:
        super().__init__()
        self.layers = stage.module
        self._stage = stage
        self._inputs = inputs
        self._copies = copies
        self._computing = computing
        self._phony = torch.zeros((), device=stage.device, requires_grad=True)
        self._microbatch: MicrobatchId = (0, 0)

    def begin(self, minibatch: int) -> None:
        """The next microbatches are of this minibatch, counted from the start of the run."""
        self._microbatch = minibatch, 0

    @override
    def forward(self, *tensors: Tensor) -> Tensors:
        (t, j), index = self._microbatch, self._stage.index
        self._microbatch = t, j + 1
        self._stage.measurements.forward[t].append(self._stage.updates)
        phony = self._phony
        with self._computing(f"F{t}.{j} of stage {index}"):
            if index > 0:
                phony, *tensors = _Arrive.apply(self._copies, self._inputs, *tensors)
            outputs: Tensors = self.layers(*tensors, microbatch=(t, j))
            departed: Tensors = _Depart.apply(self._stage.loss is None, phony, *outputs)
            return departed


# A phony, a scalar that is always zero, links a stage's inputs to its outputs in the autograd graph, past its layers:
#
#     received ──► Arrive ──► inputs ──► layers ──► outputs ──► Depart ──► sent
#                       └──────────── phony ───────────────────┘
#
# With it each output has a gradient, those of a stage without weights too, and each input has one, those that no output
# depends on too. Where backward is split in two, the library finds a weight by the nodes of the graph that it shares
# with an input: without a common end it would leave out, in silence, the weights of a stage that gets integers alone.


class _Arrive(torch.autograd.Function):
    """The phony, then what was received, as the layers want it; no leaves, as a first layer may work in place."""

    @staticmethod
    @override
    def forward(ctx: Any, copies: bool, specs: tuple[Spec, ...], *tensors: Tensor) -> Tensors:
        ctx.specs, ctx.carried = specs, [Spec.of(tensor) for tensor in tensors]
        received = [_unpacked(tensor, spec) for tensor, spec in zip(tensors, specs, strict=True)]
        arrived = tuple(tensor.clone() if copies else tensor.data for tensor in received)
        ctx.mark_non_differentiable(*(tensor for tensor in arrived if not tensor.is_floating_point()))
        return torch.zeros((), device=tensors[0].device), *arrived

    @staticmethod
    @override
    def backward(ctx: Any, phony: Tensor, *gradients: Tensor) -> Any:
        return (
            None,
            None,
            *(
                gradient.contiguous() if spec.dtype.is_floating_point else carried.empty(phony.device).zero_()
                for gradient, spec, carried in zip(gradients, ctx.specs, ctx.carried, strict=True)
            ),
        )


class _Depart(torch.autograd.Function):
    """Passes on outputs of the layers: packed for the next stage, or contiguous for the loss."""

    @staticmethod
    @override
    def forward(ctx: Any, packs: bool, _phony: Tensor, *tensors: Tensor) -> Tensors:
        ctx.floating = [tensor.is_floating_point() for tensor in tensors]
        departed = tuple((packed(tensor) if packs else tensor.contiguous()).data for tensor in tensors)
        ctx.mark_non_differentiable(*(tensor for tensor in departed if not tensor.is_floating_point()))
        return departed

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ours = [gradient if floating else None for gradient, floating in zip(gradients, ctx.floating, strict=True)]
        return None, torch.zeros((), device=gradients[0].device), *ours


def packed(tensor: Tensor) -> Tensor:
    """The tensor as it is carried: contiguous; integers and masks as the values of their bytes, which are exact."""
    dense = tensor.contiguous()
    return dense if dense.is_floating_point() else bytes_of(dense).to(torch.float32)


def _unpacked(tensor: Tensor, spec: Spec) -> Tensor:
    if spec.dtype.is_floating_point:
        return tensor
    return tensor.to(torch.uint8).view(spec.dtype).view(spec.shape)
