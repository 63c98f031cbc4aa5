"""Whether a forward that asks for dtypes does in lower precision what was recorded of it in float32."""

import copy

import torch

from pipetrain.arithmetic import Arithmetic
from pipetrain.errors import ConfigError
from pipetrain.models.chain import Inputs, LayerChain

_TOLERANCE = 0.05
"""Relative: where a cast is left out, the numbers are only more precise."""


def check_dtypes(chain: LayerChain, inputs: Inputs, output: str | None, arithmetic: Arithmetic) -> None:
    """Holds layers that were cut along a graph against the whole module, in the precision of the run.

    Args:
        chain: the model, left as it is.
        inputs: of a few samples.
        output: the entry of what the module returns that goes to the loss; None: see `chain_of`.
        arithmetic: of the run.

    Raises:
        ConfigError: they give other outputs.
    """
    # as with the recording itself, modules of torch that nobody else needs
    from pipetrain.models.graph.agreement import agrees
    from pipetrain.models.graph.example import Example
    from pipetrain.models.graph.segment import Segment

    if not isinstance(chain.layers[0], Segment):
        return
    with arithmetic.computing(torch.device("cpu")):
        same = agrees(copy.deepcopy(chain), Example.of(inputs), output, _TOLERANCE)
    if not same:
        raise ConfigError(
            f"train.precision={arithmetic.precision}: in stages, {type(chain.module).__name__} gives other outputs "
            "than by itself, as its forward depends on the dtypes of tensors; train.precision=fp32 works"
        )
