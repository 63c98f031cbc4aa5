"""Whether layers that were cut along a graph do what the whole module does: in training, and in lower precision."""

import copy

import torch

from pipetrain.arithmetic import ComputeOptions
from pipetrain.errors import ConfigError
from pipetrain.models.chain import Inputs, LayerChain

_TOLERANCE = 0.05
"""Relative: where a cast is left out, the numbers are only more precise."""


def check_training(chain: LayerChain, inputs: Inputs, output: str | None, seed: int) -> None:
    """Trains the layers and the whole module on the first samples, for outputs, gradients and buffers of equal bits.

    Args:
        chain: the model, `recorded`; left as it is.
        inputs: of a few samples.
        output: the entry of what the module returns that goes to the loss; None: see `chain_of`.
        seed: of the run.

    Raises:
        ConfigError: they differ.
    """
    # as with the recording itself, modules of torch that nobody else needs
    from pipetrain.models.graph.equivalence import trains_like_eager
    from pipetrain.models.graph.example import Example

    if trains_like_eager(chain, Example.of(inputs), output, seed):
        return
    raise ConfigError(
        f"model: {type(chain.module).__name__} cannot be cut into stages: in training, its layers give different "
        "outputs or gradients than its own forward, for example because its first call differs; "
        "return an nn.Sequential whose children are the layers, or a pipetrain.LayerChain(module, layers)"
    )


def check_dtypes(chain: LayerChain, inputs: Inputs, output: str | None, arithmetic: ComputeOptions) -> None:
    """Holds layers that were cut along a graph against the whole module, in the precision of the run.

    Args:
        chain: the model, `recorded`; left as it is.
        inputs: of a few samples.
        output: the entry of what the module returns that goes to the loss; None: see `chain_of`.
        arithmetic: of the run.

    Raises:
        ConfigError: they give other outputs.
    """
    from pipetrain.models.graph.equivalence import matches_eager
    from pipetrain.models.graph.example import Example

    with arithmetic.computing(torch.device("cpu")):
        same = matches_eager(copy.deepcopy(chain), Example.of(inputs), output, _TOLERANCE)
    if not same:
        raise ConfigError(
            f"train.precision={arithmetic.precision}: in stages, {type(chain.module).__name__} gives different "
            "outputs than as a whole, because its forward depends on the dtypes of tensors; train.precision=fp32 works"
        )
