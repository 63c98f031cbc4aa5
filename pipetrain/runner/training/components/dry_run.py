"""The model's outputs for the first samples, computed before the start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from pipetrain.data.fetch import Fetch
from pipetrain.data.interface import DataSet
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


_TAKEN = ("input", "weight")
_LOOKUPS = (functional.embedding, functional.embedding_bag)


class EmbeddingIndexCheck(TorchFunctionMode):
    """Checks each lookup in an embedding table while it is active.

    Args:
        chain: the model.
        inputs: of its first layer.
        indices: of their samples in the training set.
        vocabulary: number of tokens that the data object declares; None if it declares none.
    """

    def __init__(self, chain: LayerChain, inputs: Tensors, indices: Sequence[int], vocabulary: int | None) -> None:
        super().__init__()
        self._inputs, self._indices, self._vocabulary = inputs, indices, vocabulary
        self._names = {id(weight): name for name, weight in chain.module.named_parameters()}
        self._rows: dict[int, int] = {}

    @property
    def tokens(self) -> TokenRange | None:
        """Range of ids of the inputs that are themselves looked up; None if there are none."""
        alone = len(self._rows) == 1  # with several, it is unknown which of them has the data set's tokens
        return TokenRange("train", dict(self._rows), self._vocabulary if alone else None) if self._rows else None

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Raises a ConfigError for an id without a row in its table."""
        kwargs = kwargs or {}
        if func in _LOOKUPS:
            self._see(*args[:2], *(kwargs[name] for name in _TAKEN[len(args) :]))
        return func(*args, **kwargs)

    def _see(self, ids: Tensor, table: Tensor) -> None:
        for number, given in enumerate(self._inputs):
            if given.data_ptr() == ids.data_ptr() and given.numel() == ids.numel():
                self._rows[number] = min(len(table), self._rows.get(number, len(table)))
                TokenRange("train", {number: len(table)}, self._vocabulary).check(self._inputs, self._indices)
        if ids.numel() and (ids.min() < 0 or ids.max() >= len(table)):
            raise ConfigError(
                f"model: the forward looks up row {int(ids.max() if ids.min() >= 0 else ids.min())} of "
                f"{self._names.get(id(table), 'a table')}, which has {len(table)}, for inputs of shape "
                f"{', '.join(str(tuple(each.shape)) for each in self._inputs)}; shorter samples or a larger table work"
            )
