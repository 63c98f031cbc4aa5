"""Checks of the tensors in a checkpoint's files, which another program may have written."""

from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from pipetrain.engine.optim.optimizer_state import GROUP, NUMBER, OURS
from pipetrain.engine.stage.saved_state import Kind, TensorName

_SET_BY_RUN = {*OURS, "fused", "foreach", "capturable", "differentiable", "maximize"}
"""Settings of an optimizer's groups that no step changes."""


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
