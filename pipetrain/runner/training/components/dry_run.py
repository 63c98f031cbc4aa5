"""The model's outputs for the first samples, computed before the start."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipetrain.data.fetch import Fetch
from pipetrain.data.interface import DataSet
from pipetrain.data.lookups import EmbeddingIndexCheck
from pipetrain.data.ranges import TokenRange
from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.engine.failure import described, lacks_gradients
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.tensors import Tensors
from pipetrain.runner.training.components.data import Data
from pipetrain.runner.training.components.model import naming_types

_SAMPLES = 2
_SEVERAL = 8
_PLAIN = ComputeOptions()


@dataclass(frozen=True)
class DryRun:
    """The model's outputs for the first samples, as an evaluation computes them.

    Attributes:
        indices: of the samples of the first minibatch.
        all_targets: of that minibatch.
        tokens: range of ids that the model has rows for; None if it looks none up.
        several: inputs of some more samples of the minibatch.
    """

    outputs: Tensors
    targets: Tensors
    indices: Sequence[int]
    all_targets: Tensors
    tokens: TokenRange | None = None
    inputs: Tensors = ()
    several: Tensors = ()


def training_dry_run(data: Data, chain: LayerChain, arithmetic: ComputeOptions = _PLAIN) -> DryRun:
    """The first minibatch, and the model's outputs for its first samples.

    Raises:
        ConfigError: a layer cannot compute in this precision, or looks up an id without a row in its table.
    """
    inputs, targets = next(data.train.samples(0, 0, 1))
    indices, vocabulary = data.train.minibatches(0)[0], DataSet(data.dataset).vocabulary_size
    given = tuple(tensor.clone() for tensor in _first(inputs))  # which the forward may change in place
    lookups = EmbeddingIndexCheck(chain, given, indices, vocabulary if is_whole(vocabulary) else None)
    with lookups:
        outputs = _outputs(chain, given, arithmetic)
    several = tuple(tensor[:_SEVERAL] for tensor in inputs)
    return DryRun(outputs, _first(targets), indices, targets, lookups.tokens, _first(inputs), several)


def several_outputs(trial: DryRun, chain: LayerChain, arithmetic: ComputeOptions) -> tuple[Tensors, Tensors]:
    """The model's outputs for `several` samples, and their targets."""
    outputs = _outputs(chain, tuple(tensor.clone() for tensor in trial.several), arithmetic)
    return outputs, tuple(target[:_SEVERAL] for target in trial.all_targets)


def evaluation_dry_run(data: Data, chain: LayerChain, of_training: DryRun, arithmetic: ComputeOptions) -> DryRun | None:
    """A dry run with samples of the evaluation set; None if they have the form of those of the training set.

    Raises:
        ConfigError: the model cannot compute them.
        DataError: they cannot be read.
    """
    indices = data.evaluation.minibatches(0)[0][:_SAMPLES]
    inputs, targets = Fetch(data.evaluation.dataset, data.evaluation.seed, inputs=True, targets=True)(0, indices)
    if _forms(inputs) == _forms(of_training.inputs) and _forms(targets) == _forms(of_training.targets):
        return None
    try:
        outputs = _outputs(chain, tuple(tensor.clone() for tensor in inputs), arithmetic)
    except Exception as error:
        raise ConfigError(
            f"dataset: the model fails on `eval`: {described(error)}; its inputs are {types_and_shapes(inputs)}, "
            f"and those of `train` {types_and_shapes(of_training.inputs)}"
        ) from error
    return DryRun(outputs, targets, indices, targets, inputs=inputs)


def _forms(tensors: Tensors) -> list[object]:
    return [(tensor.dtype, tensor.shape[1:]) for tensor in tensors]


def types_and_shapes(tensors: Tensors) -> str:
    """Types and shapes of the tensors, for an error."""
    return ", ".join(f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}" for each in tensors)


@torch.no_grad()
def _outputs(chain: LayerChain, inputs: Tensors, arithmetic: ComputeOptions) -> Tensors:
    try:
        # in evaluation buffers stay as they are, and nothing is drawn
        with naming_types(chain.module, chain, inputs), chain.evaluating(), arithmetic.computing(inputs[0].device):
            outputs = chain(*arithmetic.cast_inputs(inputs))
    except RuntimeError as error:
        if cure := lacks_gradients(error):
            raise ConfigError(f"model: the forward fails in evaluation: {described(error)}{cure}") from error
        if not arithmetic.mixed:
            raise
        raise ConfigError(
            f"train.precision={arithmetic.precision}: the model fails in it: {described(error)}; fp32 works"
        ) from error
    return arithmetic.cast_outputs(outputs if isinstance(outputs, tuple) else (outputs,))


def _first(tensors: Tensors) -> Tensors:
    return tuple(tensor[:_SAMPLES] for tensor in tensors)
