"""The tables in which a model looks up the ids of its inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from pipetrain.data.ranges import TokenRange
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.tensors import Tensors

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
