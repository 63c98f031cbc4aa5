"""What the tensors of a checkpoint are called, so that any partition finds its own."""

from dataclasses import dataclass
from enum import StrEnum

from typing_extensions import override


class Kind(StrEnum):
    """What a tensor of a checkpoint is."""

    MODEL = "model"
    """A weight or buffer."""
    OPTIMIZER = "optimizer"
    """An entry of the optimizer's state of a weight."""
    STATISTIC = "statistic"
    """What a method's statistic holds of a weight."""
    CARRIED = "carried"
    """What a layer carries from minibatch to minibatch."""
    SCALER = "scaler"
    """The factor of a scaled loss, of a stage: it is named after its layers."""
    HISTORY = "run"
    """A series that the run has recorded."""


_KEYED = (Kind.OPTIMIZER, Kind.STATISTIC, Kind.CARRIED)


@dataclass(frozen=True)
class TensorName:
    """The name of one tensor, such as `model.conv.weight` or `optimizer.conv.weight/exp_avg`.

    Attributes:
        kind: what it is.
        of: the weight, the buffer, the layer or the series that it belongs to, as the whole model or the run calls it.
        key: the entry of the optimizer's state, the name of the statistic, or the number of the layer's tensor; else
            empty.
    """

    kind: Kind
    of: str
    key: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.kind}.{self.of}/{self.key}" if self.kind in _KEYED else f"{self.kind}.{self.of}"

    @classmethod
    def parse(cls, name: str) -> "TensorName":
        """The name that prints as `name`."""
        kind, _, rest = name.partition(".")
        of, _, key = rest.rpartition("/") if kind in _KEYED else (rest, "", "")
        return cls(Kind(kind), of, key)
