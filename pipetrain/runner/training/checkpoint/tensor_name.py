"""Names of the tensors of a checkpoint, and what may be under them: another program may have written the files."""

from dataclasses import dataclass
from enum import StrEnum
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open
from typing_extensions import override

from pipetrain.engine.optim.stage_optimizer import GROUP, NUMBER, OURS


class Kind(StrEnum):
    """Kind of a tensor in a checkpoint."""

    MODEL = "model"
    """A weight or buffer."""
    OPTIMIZER = "optimizer"
    """An entry of the optimizer's state of a weight."""
    STATISTIC = "statistic"
    """A weight's entry of a method's statistic."""
    AVERAGE = "average"
    """The average of a weight."""
    CARRIED = "carried"
    """Recurrent state that a layer carries from minibatch to minibatch."""
    SCALER = "scaler"
    """The factor of a scaled loss, of a stage: it is named after its layers."""
    HISTORY = "run"
    """A series that the run has recorded."""


_SET_BY_RUN = {*OURS, "fused", "foreach", "capturable", "differentiable", "maximize"}
"""Settings of an optimizer's groups that no step changes."""
_KEYED = (Kind.OPTIMIZER, Kind.STATISTIC, Kind.CARRIED)


@dataclass(frozen=True)
class TensorName:
    """The name of one tensor, such as `model.conv.weight` or `optimizer.conv.weight/exp_avg`.

    Attributes:
        kind: first part of the name.
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


def fault(path: Path, step: int) -> str | None:
    """Fault of a file of a checkpoint after `step` steps, as the continuation of `damaged:`; None if it is valid."""
    try:
        with safe_open(path, framework="pt") as file:
            for text in file.keys():  # noqa: SIM118
                if wrong := _fault(TensorName.parse(text), file.get_slice(text).get_shape(), step):
                    return f"its {text} {wrong}"
    except SafetensorError as error:
        return f"not a safetensors file: {error}"
    except ValueError as error:
        return f"it holds tensors that no checkpoint has: {error}"
    return None


def _fault(name: TensorName, shape: list[int], step: int) -> str | None:
    if name.kind is Kind.OPTIMIZER:
        if name.key.removeprefix(GROUP).removesuffix(NUMBER) in _SET_BY_RUN and name.key.startswith(GROUP):
            return "is set by the run, and not by a checkpoint"
        if prod(shape) != 1 and (name.key == "step" or name.key.endswith(NUMBER)):
            return f"is of shape {tuple(shape)} and no number"
    if name.kind is Kind.CARRIED and not name.key.isdecimal():
        return "has no number of a tensor"
    if name.kind is Kind.HISTORY and name.of == "losses" and shape != [step]:
        return f"is of shape {tuple(shape)}, and the checkpoint of step {step}"
    return None
