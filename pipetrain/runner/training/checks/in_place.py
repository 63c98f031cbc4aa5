"""A check of layers that change their inputs in place: cuts part tensors that share memory, as messages are copies."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.seeding import python_draws
from pipetrain.engine.tensors import Tensors, close
from pipetrain.runner.training.checks.layers import OTHER_ERRORS, copy_of

_TOLERANCE = 1e-4


def check_in_place(chain: LayerChain, inputs: Tensors, cuts: Collection[int], changing: Sequence[int]) -> None:
    """Compares the chain cut into stages with the same layers uncut: outputs and gradients for a few samples.

    Args:
        chain: the model, in training mode; left as it is.
        inputs: of its first layer.
        cuts: first layers of the stages but the first.
        changing: the layers that change an input in place, one at least.

    Raises:
        ConfigError: they differ, or what a layer writes over is needed by the backward, so that the model cannot be
            trained without a pipeline either.
    """
    with suppress(*OTHER_ERRORS), torch.random.fork_rng(devices=[]):
        if (uncut := _trained(chain, inputs, ())) is None:
            # a copy of its input cures the layer that is to blame
            wrong = next((i for i in changing if _trained(chain, inputs, (i,)) is not None), changing[0])
            raise ConfigError(
                f"model: layer {chain.labels[wrong]} changes its input in place, which the backward of the layer "
                "before needs, so that the model cannot be trained; out of place (inplace=False) works"
            )
        cut = _trained(chain, inputs, cuts)
        if cut is None or not all(map(partial(close, tolerance=_TOLERANCE), uncut, cut)):
            raise ConfigError(
                f"model: layer {chain.labels[changing[0]]} changes its input in place, which shares memory with "
                "another tensor that crosses a cut; behind the cut these are two, and the model would compute "
                "something else; pass on a clone() of one of them"
            )


def _trained(chain: LayerChain, inputs: Tensors, copied: Collection[int]) -> list[Tensor | None] | None:
    """Outputs, and gradients of all weights, if layers `copied` get copies; None if the backward needs what is gone."""
    probe = copy_of(chain)
    tensors = tuple(tensor.clone() for tensor in inputs)
    torch.default_generator.manual_seed(0)
    with torch.enable_grad(), python_draws(0):
        for index, layer in enumerate(probe.layers):
            result = layer(*(tensor.clone() if index in copied else tensor for tensor in tensors))
            tensors = result if isinstance(result, tuple) else (result,)
        through = [tensor for tensor in tensors if tensor.requires_grad]
        try:
            torch.autograd.backward(through, [torch.ones_like(tensor) for tensor in through])
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            return None
    return [*(tensor.detach() for tensor in tensors), *(weight.grad for weight in probe.module.parameters())]
