"""Checks that layers cut along a graph compute what the module itself does."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.failure import described
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.seeding import python_draws
from pipetrain.engine.tensors import Tensors, close
from pipetrain.graph.example import SAMPLES, Example, select_outputs
from pipetrain.graph.python_state import changes, generators, python_state
from pipetrain.graph.tracing import disable_generation_cache

_FEW = 2
_SHORT = 16
TOLERANCE = 1e-4


def matches_eager(
    chain: LayerChain, example: Example, output: str | None, seed: int, tolerance: float = TOLERANCE
) -> bool:
    """True if a chain and its module return the same for these inputs in evaluation; False if only the chain fails.

    Python, numpy and torch draw the same numbers for both, which are left as they are. The absolute tolerance is a
    tenth of `tolerance`, the relative one.

    Raises:
        Exception: the module itself fails.
    """
    copied = copy.deepcopy(chain)
    for part in (copied.module, *copied.layers):
        part.eval()
    with torch.no_grad():
        with _drawing(seed):
            plain = _outputs(copied, example, output, in_layers=False)
        try:
            with _drawing(seed):
                ours = _outputs(copied, example, output, in_layers=True)
        except Exception:  # whatever the layers make of these inputs
            return False
    return _all_same(ours, plain, tolerance)


def trains_like_eager(chain: LayerChain, example: Example, output: str | None, seed: int) -> bool:
    """True if a chain and its module compute the same bits in training: outputs, gradients and buffers.

    Python, numpy and torch draw the same numbers for both, which are left as they are. If the module itself does not
    give the same bits again, about the same is enough. If its forward changes Python state, three minibatches one after
    the other and two seeds are compared. First a few short inputs are tried.

    Raises:
        ConfigError: a forward or backward fails.
    """
    length = example.length
    others = [
        replace(example, tensors=tuple(map(changed, example.tensors)))
        for changed in (lambda tensor: tensor.flip(0), lambda tensor: tensor.roll(1, 0))
    ]
    for size in ((_FEW, length and min(length, _SHORT)), (SAMPLES[1], length)):
        try:
            return _trains_alike(chain, [each.resized(*size) for each in (*others, example)], output, seed)
        except Exception as error:  # whatever the forward makes of these inputs, or of their number and length
            failed = error
    name = type(chain.module).__name__
    raise ConfigError(f"model: {name} fails in training on the first samples: {described(failed)}") from failed


def trains_alone(chain: LayerChain, sample: Example, output: str | None) -> bool:
    """True if a chain and its module compute the same in training for a single sample; False if one of them fails."""
    try:
        return _trains_alike(chain, (sample,), output, seed=0)
    except Exception:  # whatever the forward makes of one sample, such as batch norm
        return False


def evaluates_alone(chain: LayerChain, sample: Example, output: str | None) -> bool:
    """True if a chain and its module return the same in evaluation for a single sample; False if one of them fails."""
    try:
        return matches_eager(chain, sample, output, seed=0)
    except Exception:  # whatever the forward makes of one sample
        return False


def _trains_alike(chain: LayerChain, inputs: Sequence[Example], output: str | None, seed: int) -> bool:
    plain, kept = _trained(chain, inputs[-1:], output, seed, in_layers=False)
    if kept:
        return _is_like(plain, chain, inputs[-1:], output, seed)
    # the forward may do something else where it has done this before, for other inputs
    return all(
        _is_like(_trained(chain, inputs, output, each, in_layers=False)[0], chain, inputs, output, each)
        for each in (seed, seed + 1)
    )


def _is_like(
    plain: list[Tensor | None], chain: LayerChain, inputs: Sequence[Example], output: str | None, seed: int
) -> bool:
    """True if the layers give the results `plain` of the module."""
    ours, _ = _trained(chain, inputs, output, seed, in_layers=True)
    if _all_same(plain, ours, 0):
        return True
    again, _ = _trained(chain, inputs, output, seed, in_layers=False)
    return not _all_same(plain, again, 0) and _all_same(plain, ours, TOLERANCE)


def _trained(
    chain: LayerChain, inputs: Sequence[Example], output: str | None, seed: int, *, in_layers: bool
) -> tuple[list[Tensor | None], bool]:
    """All outputs, the gradients of the last, and the buffers; True if the forward changed no Python state."""
    copied = copy.deepcopy(chain)
    disable_generation_cache(copied.module)
    results: list[Tensor | None] = []
    with _drawing(seed), torch.enable_grad():
        before = {**python_state(copied.module), **generators()}
        for example in inputs:
            outputs = _outputs(copied, example, output, in_layers=in_layers)
            results += (tensor.detach().clone() for tensor in outputs)
        through = [tensor for tensor in outputs if tensor.requires_grad]
        torch.autograd.backward(through, [torch.randn_like(tensor) for tensor in through])
        after = {**python_state(copied.module), **generators()}
    results += (parameter.grad for parameter in copied.module.parameters())
    return [*results, *copied.module.buffers()], not changes(before, after, after)


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Python, numpy and torch on the CPU draw from `seed` inside; their former states are restored after it."""
    with python_draws(seed), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _outputs(chain: LayerChain, example: Example, output: str | None, *, in_layers: bool) -> Tensors:
    example = replace(example, tensors=tuple(tensor.clone() for tensor in example.tensors))  # which it may change
    if in_layers:
        return select_outputs(chain(*example.tensors), None)[0]
    return select_outputs(example.given_to(chain.module), output)[0]


def _all_same(some: Sequence[Tensor | None], others: Sequence[Tensor | None], tolerance: float) -> bool:
    return all(close(a, b, tolerance) for a, b in zip(some, others, strict=True))
