"""The module of a stage: its layers, which compute with the weights that are put in."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.models.chain import Child, sharing_buffers
from pipetrain.engine.models.stateful_layer import stateful_layers
from pipetrain.engine.seeding import keys_after, may_draw, python_draws
from pipetrain.engine.stage import cudnn_rnn
from pipetrain.engine.stage.recurrent_state import RecurrentState
from pipetrain.engine.tensors import Tensors

_PLAIN = ComputeOptions()
_CPU = torch.device("cpu")
MicrobatchId = tuple[int, int]
"""(minibatch since the start of the run, microbatch)."""
BackwardId = tuple[int, int | None]
"""The same of a backward; None for all microbatches together."""
AtLayer = Callable[[int, Tensors], Tensors]
"""(index of a layer in the chain, its inputs) -> what it gets instead."""


class StageModule(nn.Module):
    """Consecutive layers of a chain; their random draws depend on their place in it, not on the process.

    Args:
        layers, first: of the chain, and the index of the first of them in it.
        seed: key of all random draws.
        arithmetic, device: precision and memory format, and where the layers are moved to.
        ends: True if the last layer is the chain's, whose outputs the loss takes.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        first: int,
        seed: int,
        arithmetic: ComputeOptions = _PLAIN,
        device: torch.device = _CPU,
        *,
        ends: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.first = first
        self.seed = seed
        self.carried = RecurrentState(
            {
                f"layers.{index}{'.' * bool(name)}{name}": carrier
                for index, layer in enumerate(layers, start=first)
                for name, carrier in stateful_layers(layer).items()
            }
        )
        self.arithmetic = arithmetic
        self._ends = ends
        loss_at = first + len(layers) - 1 if ends else None  # a loss may draw, too
        self._may_draw = {
            index: may_draw({type(module).__module__ for module in layer.modules()})
            for index, layer in enumerate(layers, start=first)
            if index == loss_at or not never_draws(layer)
        }
        """Layer that is seeded -> True if its files import a generator of Python or numpy."""
        self._python_draws: dict[int, bool] = {}
        self.device = device
        with sharing_buffers(self):  # before anything below holds weights and buffers, which a device may replace
            self.to(device)
            arithmetic.prepare(self)
        self._calls = [
            # a child of nn.Sequential is called as such: the call of a module takes the time of a small layer
            (i, layer.child, True) if type(layer) is Child and not arithmetic.compiled else (i, call, False)
            for i, (layer, call) in enumerate(zip(layers, arithmetic.callables(layers), strict=True), start=first)
        ]
        """Index and callable of each layer, and True if it takes several tensors as one tuple."""
        self._own: dict[str, Tensor] = dict(self.named_parameters())
        self._held: Mapping[str, Tensor] = self._own
        names = {id(parameter): name for name, parameter in self._own.items()}
        self._slots = [(held, local, names[id(held[local])]) for held, local in self._filled("_parameters")]
        self._buffer_slots = list(self._filled("_buffers"))
        self._recurrent = [module for module in self.modules() if isinstance(module, nn.RNNBase)]
        self.copies_weights = arithmetic.mixed or (device.type == "cuda" and bool(self._recurrent))
        """True if a forward may save casts of the weights for its backward, or what cuDNN packs of them."""

    def _filled(self, attribute: str) -> Iterator[tuple[dict[str, Any], str]]:
        """Places of all parameters or buffers: the dict of a module, and the name in it."""
        for module in self.modules():
            tensors = getattr(module, attribute)
            yield from ((tensors, local) for local, tensor in tensors.items() if tensor is not None)

    def using_weights(self, weights: Mapping[str, Tensor], *, rebound: bool = False) -> AbstractContextManager[None]:
        """Computes with `weights`, by parameter name; `rebound` if the backward reads other weights.

        torch.func.functional_call does the same at a hundred times the cost, which a small microbatch feels.
        """
        rebinding = self._rebinding() if rebound and self._recurrent else nullcontext()
        return rebinding if weights is self._held else self._putting_in(weights, rebinding)

    @contextmanager
    def _putting_in(self, weights: Mapping[str, Tensor], inside: AbstractContextManager[Any]) -> Iterator[None]:
        with inside:
            try:
                self._put(weights)
                yield
            finally:
                self._put(self._held)

    def _rebinding(self) -> AbstractContextManager[Any]:
        """Context for a forward of recurrent layers whose backward reads other weights than cuDNN packs."""
        if self.device.type != "cuda":
            return nullcontext()
        if self.arithmetic.compiled:  # hooks of its parts do not reach a compiled layer
            return cudnn_rnn.cudnn_off()
        if self.arithmetic.precision == "bf16":  # they compute without cuDNN in any case
            return nullcontext()
        if self.arithmetic.mixed:  # autocast packs casts of the weights before cuDNN sees them
            return cudnn_rnn.without_cudnn(self._recurrent)
        return cudnn_rnn.tracking_forwards(self._recurrent)

    def set_default_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        """Computes with `weights` from here on, tensors over the memory of the parameters; None: with the parameters.

        Most operations of a synchronous schedule read the same tensors, which then need not be put in each time.
        """
        # an attribute of a module is set at the cost of a small layer
        vars(self)["_held"] = self._own if weights is None else weights
        self._put(self._held)

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for slots, name, full in self._slots:
            slots[name] = weights[full]
        for module in self._recurrent:
            # torch also keeps a list of the weights, which would be out of date until the next forward
            module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]
            module._flat_weight_refs = [None if w is None else weakref.ref(w) for w in module._flat_weights]

    @contextmanager
    def scratch_buffers(self) -> Iterator[None]:
        """Computes with copies of the buffers, which are discarded afterwards."""
        buffers = [slots[name] for slots, name in self._buffer_slots]
        try:
            for (slots, name), buffer in zip(self._buffer_slots, buffers, strict=True):
                slots[name] = buffer.clone() if buffer is not None else None
            yield
        finally:
            for (slots, name), buffer in zip(self._buffer_slots, buffers, strict=True):
                slots[name] = buffer

    @override
    def forward(self, *tensors: Tensor, microbatch: MicrobatchId, at_layer: AtLayer | None = None) -> Tensors:
        """All layers in turn; `at_layer` replaces the inputs of a layer."""
        tensors = self.arithmetic.cast_inputs(tensors) if self.first == 0 else tensors
        try:
            with self.carried.lent(microbatch[1]), self.arithmetic.computing(tensors[0].device):
                seed_of = keys_after(self.seed, *microbatch) if self._may_draw else None
                for index, layer, takes_one in self._calls:
                    if at_layer is not None:
                        tensors = at_layer(index, tensors)
                    given: tuple[Any, ...] = (tensors,) if takes_one and len(tensors) > 1 else tensors
                    if seed_of is not None and index in self._may_draw:
                        result = self._drawing(index, layer, seed_of(index), given)
                    else:
                        result = layer(*given)
                    tensors = result if isinstance(result, tuple) else (result,)
        finally:
            # a layer's own autocast, inside the run's, would keep the casts of these weights for the next forward
            torch.clear_autocast_cache()
        return self.arithmetic.cast_outputs(tensors) if self._ends else tensors

    def _drawing(self, index: int, layer: Callable[..., Any], seed: int, given: tuple[Any, ...]) -> Any:
        """Output of a layer for these arguments, with all generators seeded.

        Seeding Python and numpy takes the time of a small layer. It is done for layers that draw from them in their
        first training forward, and for those whose files import a generator, which may be used later.
        """
        reseed(seed)
        if self._python_draws.get(index, True):
            with python_draws(seed) as drawn:
                result = layer(*given)
            if self.training:
                self._python_draws[index] = drawn[0] or self._may_draw[index]
            return result
        return layer(*given)

    @torch.no_grad()
    def evaluate(self, *tensors: Tensor) -> Tensors:
        """All layers in turn in evaluation mode; no state changes but what the evaluation itself carries on."""
        training = [module for module in self.modules() if module.training]
        self.eval()
        with self.carried.aside(self.carried.evaluated):
            outputs: Tensors = self(*tensors, microbatch=(0, 0))
        for module in training:
            module.training = True
        return tuple(output.detach() for output in outputs)  # a layer may have enabled gradients


_WITHOUT_DRAWS = frozenset({
    Child, nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Bilinear, nn.Embedding,
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid,
    nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax, nn.LogSoftmax, nn.ZeroPad2d, nn.Upsample, nn.PixelShuffle,
})  # fmt: skip
"""Modules of torch that draw no random numbers."""


def never_draws(layer: nn.Module) -> bool:
    """True if a layer consists of such modules alone, as torch has them: its generators need no seed."""
    return all(
        type(module) in _WITHOUT_DRAWS
        and not (module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in vars(module)  # as where a library wraps it
        for module in layer.modules()
    )


def reseed(seed: int) -> None:
    """Seeds the generators that layers draw from; torch.manual_seed does the same at a hundred times the cost."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


class NonLeafInputs(torch.autograd.Function):
    """Wraps the inputs as non-leaf tensors, so that in-place first layers are allowed.

    Autograd would copy a gradient into a leaf if another branch still uses it; here it is only stored.
    """

    @staticmethod
    @override
    def forward(ctx: Any, gradients: list[Tensor | None], *tensors: Tensor) -> Tensors:
        ctx.set_materialize_grads(False)
        ctx.gradients = gradients
        return tuple([tensor.data for tensor in tensors])

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.gradients[:] = gradients
        return None, *[None] * len(gradients)


_record = super(torch.autograd.Function, NonLeafInputs).apply
"""`NonLeafInputs.apply` without the transforms of torch.func, at half the cost."""


def non_leaf_inputs(inputs: Tensors, differentiable: Sequence[Tensor]) -> tuple[Tensors, list[Tensor | None]]:
    """The inputs for autograd, and the list for gradients of the differentiable ones: all floating ones, or none."""
    leaves = [tensor.detach().requires_grad_() for tensor in differentiable]
    if not leaves:
        return inputs, []
    gradients: list[Tensor | None] = [None] * len(leaves)
    return _in_place_of_floating(inputs, _record(gradients, *leaves)), gradients


def leaf_inputs(inputs: Tensors, differentiable: Sequence[Tensor]) -> tuple[Tensors, list[Tensor]]:
    """The inputs as leaves of autograd, which takes a tenth of the time, and those of them that get gradients."""
    leaves = [tensor.detach().requires_grad_() for tensor in differentiable]
    return _in_place_of_floating(inputs, leaves), leaves


def _in_place_of_floating(inputs: Tensors, others: Iterable[Tensor]) -> Tensors:
    following = iter(others)
    return tuple([next(following) if tensor.is_floating_point() else tensor for tensor in inputs])
