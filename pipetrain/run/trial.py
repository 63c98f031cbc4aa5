"""What the model makes of the first samples, for checks before the start."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipetrain.models.chain import LayerChain
from pipetrain.run.build import Data
from pipetrain.tensors import Tensors

_SAMPLES = 2


@dataclass(frozen=True)
class Trial:
    """The model's outputs for the first samples, as an evaluation computes them.

    Attributes:
        outputs, targets: of two samples.
        indices: which samples the first minibatch has.
        all_targets: of that minibatch.
    """

    outputs: Tensors
    targets: Tensors
    indices: Sequence[int]
    all_targets: Tensors


def trial_of(data: Data, chain: LayerChain) -> Trial:
    """Reads the first minibatch, and evaluates the model on its first samples."""
    inputs, targets = next(data.train.samples(0, 0, 1))
    return Trial(_outputs(chain, _first(inputs)), _first(targets), data.train.minibatches(0)[0], targets)


@torch.no_grad()
def _outputs(chain: LayerChain, inputs: Tensors) -> Tensors:
    for layer in chain.layers:
        layer.eval()  # buffers stay as they are, and nothing is drawn
    outputs = chain(*inputs)
    for layer in chain.layers:
        layer.train()
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _first(tensors: Tensors) -> Tensors:
    return tuple(tensor[:_SAMPLES] for tensor in tensors)
