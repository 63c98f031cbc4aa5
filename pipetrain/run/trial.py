"""What the model makes of the first samples, for checks before the start."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipetrain.arithmetic import Arithmetic
from pipetrain.data.fetch import Fetch
from pipetrain.data.token_ids import TokenRange
from pipetrain.errors import ConfigError, is_whole
from pipetrain.failure import described
from pipetrain.models.chain import LayerChain
from pipetrain.run.build.data import Data
from pipetrain.run.lookups import Lookups
from pipetrain.tensors import Tensors

_SAMPLES = 2
_PLAIN = Arithmetic()


@dataclass(frozen=True)
class Trial:
    """The model's outputs for the first samples, as an evaluation computes them.

    Attributes:
        outputs, targets: of two samples.
        indices: which samples the first minibatch has.
        all_targets: of that minibatch.
        tokens: that the model knows; None where it looks none up.
        inputs: of the two samples.
    """

    outputs: Tensors
    targets: Tensors
    indices: Sequence[int]
    all_targets: Tensors
    tokens: TokenRange | None = None
    inputs: Tensors = ()


def trial_of(data: Data, chain: LayerChain, arithmetic: Arithmetic = _PLAIN) -> Trial:
    """Reads the first minibatch, and evaluates the model on its first samples.

    Raises:
        ConfigError: a layer cannot compute in the precision asked for, or looks up an id that is in no table.
    """
    inputs, targets = next(data.train.samples(0, 0, 1))
    indices, vocabulary = data.train.minibatches(0)[0], getattr(data.dataset, "vocabulary_size", None)
    lookups = Lookups(chain, _first(inputs), indices, vocabulary if is_whole(vocabulary) else None)
    with lookups:
        outputs = _outputs(chain, _first(inputs), arithmetic)
    return Trial(outputs, _first(targets), indices, targets, lookups.tokens, _first(inputs))


def trial_of_evaluation(data: Data, chain: LayerChain, of_training: Trial, arithmetic: Arithmetic) -> Trial | None:
    """The same for samples of the evaluation set; None where they are of the form of those of the training set.

    Raises:
        ConfigError: the model cannot compute them.
        DataError: they cannot be read.
    """
    indices = data.evaluation.minibatches(0)[0][:_SAMPLES]
    inputs, targets = Fetch(data.evaluation.dataset, data.evaluation.seed, inputs=True, targets=True)(0, indices)
    assert inputs is not None
    assert targets is not None
    if _forms(inputs) == _forms(of_training.inputs) and _forms(targets) == _forms(of_training.targets):
        return None
    try:
        outputs = _outputs(chain, inputs, arithmetic)
    except Exception as error:
        raise ConfigError(
            f"dataset: the model fails on `eval`: {described(error)}; its inputs are {shown(inputs)}, and those of "
            f"`train` {shown(of_training.inputs)}"
        ) from error
    return Trial(outputs, targets, indices, targets, inputs=inputs)


def _forms(tensors: Tensors) -> list[object]:
    return [(tensor.dtype, tensor.shape[1:]) for tensor in tensors]


def shown(tensors: Tensors) -> str:
    """The types and shapes of the tensors, for an error."""
    return ", ".join(f"{str(each.dtype).removeprefix('torch.')} {tuple(each.shape)}" for each in tensors)


@torch.no_grad()
def _outputs(chain: LayerChain, inputs: Tensors, arithmetic: Arithmetic) -> Tensors:
    for layer in chain.layers:
        layer.eval()  # buffers stay as they are, and nothing is drawn
    try:
        with arithmetic.computing(inputs[0].device):
            outputs = chain(*arithmetic.given(inputs))
    except RuntimeError as error:
        if not arithmetic.mixed:
            raise
        raise ConfigError(
            f"train.precision={arithmetic.precision}: the model fails in it: {described(error)}; fp32 works"
        ) from error
    for layer in chain.layers:
        layer.train()
    return arithmetic.returned(outputs if isinstance(outputs, tuple) else (outputs,))


def _first(tensors: Tensors) -> Tensors:
    return tuple(tensor[:_SAMPLES] for tensor in tensors)
