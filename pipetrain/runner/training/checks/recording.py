"""A check of layers that were cut along a graph: they compute what the whole module does."""

import torch

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.conversion import Inputs

_PLAIN = ComputeOptions()
_OTHER_IN_EVALUATION = (
    "warning: in evaluation the layers return something else than the forward of {} itself, as where torch's fast path "
    "of nn.TransformerEncoder clears padded positions (enable_nested_tensor=False turns it off); the metrics are those "
    "of the layers"
)
_TOLERANCE = 0.05
"""Relative, in lower precision: where a cast is left out, the numbers are only more precise."""


def check_cut(
    chain: LayerChain, inputs: Inputs, output: str | None, seed: int, arithmetic: ComputeOptions = _PLAIN
) -> list[str]:
    """Compares layers that were cut along a graph with the whole module, on the first samples.

    In training their outputs, gradients and buffers have equal bits; in the precision of the run, the same outputs. In
    evaluation, where torch has other kernels for whole modules, there is a note if they differ.

    Args:
        chain: the model, `recorded`; left as it is.
        inputs: of a few samples.
        output: entry of the module's result that goes to the loss; None: see `chain_of`.
        seed: of the run.
        arithmetic: of the run.

    Raises:
        ConfigError: they differ.
    """
    # as with the recording itself, modules of torch that nothing else needs
    from pipetrain.graph.equivalence import TOLERANCE, matches_eager, trains_like_eager
    from pipetrain.graph.example import Example

    example, name = Example.of(inputs), type(chain.module).__name__
    if not trains_like_eager(chain, example, output, seed):
        raise ConfigError(
            f"model: {name} cannot be cut into stages: in training, its layers give different outputs or gradients "
            "than its own forward, for example because its first call differs; return an nn.Sequential whose children "
            "are the layers, or a pipetrain.LayerChain(module, layers)"
        )
    tolerance = _TOLERANCE if arithmetic.mixed else TOLERANCE
    with arithmetic.computing(torch.device("cpu")):
        try:
            same = matches_eager(chain, example, output, seed, tolerance)
        except Exception:  # the forward itself cannot evaluate these inputs, which a cut does not change
            return []
    if same:
        return []
    if arithmetic.mixed:
        raise ConfigError(
            f"train.precision={arithmetic.precision}: in stages, {name} gives different outputs than as a whole, "
            "because its forward depends on the dtypes of tensors; train.precision=fp32 works"
        )
    return [_OTHER_IN_EVALUATION.format(name)]
