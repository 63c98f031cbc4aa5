"""Whether layers that were cut along a graph give what the module itself gives."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pipetrain.models.chain import LayerChain
from pipetrain.models.graph.example import Example
from pipetrain.models.graph.outputs import selected


def agrees(chain: LayerChain, example: Example, output: str | None, tolerance: float = 1e-4) -> bool:
    """Whether they give the same for these inputs, in evaluation; not where one of them fails.

    Args:
        chain: with its module.
        example: the inputs.
        output: the entry of what the module returns that goes to the loss; None: see `outputs.selected`.
        tolerance: relative; a tenth of it is allowed beside zero.
    """
    named = dict(zip(example.names, example.tensors, strict=False))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _evaluating([chain.module, *chain.layers]):
        try:
            plain, _ = selected(chain.module(**named) if named else chain.module(*example.tensors), output)
            returned = chain(*example.tensors)
        except Exception:  # whatever the forward makes of these inputs
            return False
    ours = returned if isinstance(returned, tuple) else (returned,)
    return all(_same(one, other, tolerance) for one, other in zip(ours, plain, strict=True))


def _same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return one.shape == other.shape and torch.allclose(
        one.float(), other.float(), rtol=tolerance, atol=tolerance / 10, equal_nan=True
    )


@contextmanager
def _evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    parts = [part for module in modules for part in module.modules()]
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
