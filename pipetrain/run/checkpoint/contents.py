"""The tensors of a checkpoint: saved by stage, and loaded by name, into any partition."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.errors import ConfigError
from pipetrain.models.chain import LayerChain
from pipetrain.run.checkpoint import manifest, tensor_file
from pipetrain.run.checkpoint.store import load_progress
from pipetrain.stage.base import BaseStage
from pipetrain.stage.gradients import LossScaler
from pipetrain.tensors import Tensors


class Kind(StrEnum):
    """Kind of a tensor in a checkpoint."""

    MODEL = "model"
    """A weight or buffer."""
    OPTIMIZER = "optimizer"
    """An entry of the optimizer's state of a weight."""
    STATISTIC = "statistic"
    """A weight's entry of a method's statistic."""
    CARRIED = "carried"
    """Recurrent state that a layer carries from minibatch to minibatch."""
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


_OF_WEIGHTS = (Kind.MODEL, Kind.OPTIMIZER, Kind.STATISTIC)


def stage_tensors(stage: BaseStage) -> dict[str, Tensor]:
    """A stage's part of a checkpoint: weights, buffers, optimizer state, statistic and what its layers carry.

    A weight that several stages hold is in the part of the first of them.
    """
    full, statistic = stage.full_names, stage.weights.statistic
    tensors = {TensorName(Kind.MODEL, name): tensor for name, tensor in stage.state().items()}
    for local, state in stage.optimizer.state().items():
        tensors.update({TensorName(Kind.OPTIMIZER, full[local], key): value for key, value in state.items()})
    if statistic is not None:
        for local, value in statistic.state().items():
            tensors[TensorName(Kind.STATISTIC, full[local], statistic.name)] = value
    for carrier, carried in stage.carried.tensors().items():
        tensors.update({TensorName(Kind.CARRIED, carrier, str(i)): value for i, value in enumerate(carried)})
    if stage.scaler is not None:
        tensors[TensorName(Kind.SCALER, stage.layers)] = stage.scaler.state()
    return {str(name): tensor for name, tensor in tensors.items() if name.of not in stage.copied}


def load_tensors(folder: Path, selects: Callable[[TensorName], bool]) -> dict[TensorName, Tensor]:
    """The tensors whose names `selects` accepts, on the CPU, whichever process wrote them.

    Raises:
        ConfigError: a file holds something else.
    """
    tensors: dict[str, Tensor] = {}
    for name in manifest.names(folder):
        if name.endswith(tensor_file.SUFFIX):
            try:
                tensors |= tensor_file.read(folder / name, lambda each: selects(TensorName.parse(each)))
            except ValueError as error:
                raise ConfigError(f"{folder / name}: holds tensors that no checkpoint has: {error}") from error
    return {TensorName.parse(name): tensor for name, tensor in tensors.items()}


def restore(stage: BaseStage, folder: Path, step: int) -> None:
    """Loads a checkpoint's weights, buffers, optimizer state, statistics and carried state into a stage.

    Args:
        stage: where to.
        folder: the checkpoint.
        step: updates that were made.

    Raises:
        ConfigError: the checkpoint was saved from another model.
    """
    local_names: dict[str, str] = {}
    for local, full in stage.full_names.items():
        local_names.setdefault(full, local)  # of a weight that layers of the stage share, the optimizer knows the first
    tensors = load_tensors(folder, lambda name: name.kind in _OF_WEIGHTS and name.of in local_names)
    model = {name.of: tensor for name, tensor in tensors.items() if name.kind is Kind.MODEL}
    if missing := local_names.keys() - model.keys():
        raise ConfigError(f"resume={folder}: was saved from another model, without {min(missing)}")
    with torch.no_grad():
        for full, target in stage.state().items():
            target.copy_(model[full])
    optimizer: dict[str, dict[str, Tensor]] = {}
    statistics: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.kind is Kind.OPTIMIZER:
            optimizer.setdefault(local_names[name.of], {})[name.key] = tensor
        elif name.kind is Kind.STATISTIC:
            statistics.setdefault(name.key, {})[local_names[name.of]] = tensor
    if stage.scaler is not None:
        _restore_scaler(stage.scaler, folder, stage.layers)
    stage.optimizer.load_state(optimizer)
    stage.carried.restore(_carried(folder, stage))
    stage.resume_at(step, statistics)


def _carried(folder: Path, stage: BaseStage) -> dict[str, Tensors]:
    """Name of a layer that carries state -> its tensors in order."""
    found = load_tensors(folder, lambda name: name.kind is Kind.CARRIED and name.of in stage.carried.names)
    carried: dict[str, Tensors] = {}
    for name in sorted(found, key=lambda name: int(name.key)):
        carried[name.of] = (*carried.get(name.of, ()), found[name].to(stage.device))
    return carried


def _restore_scaler(scaler: LossScaler, folder: Path, layers: str) -> None:
    """Restores the same stage's scale, else the smallest of other stages; none if the loss was not scaled before."""
    saved = {name.of: state for name, state in load_tensors(folder, lambda n: n.kind is Kind.SCALER).items()}
    if saved:
        scaler.load_state(saved[layers] if layers in saved else min(saved.values(), key=lambda state: state[0].item()))


def load_history(folder: Path) -> dict[str, Tensor]:
    """The series that the run had recorded, by name."""
    return {str(name): tensor for name, tensor in load_tensors(folder, lambda n: n.kind is Kind.HISTORY).items()}


def model_state(folder: Path) -> dict[str, Tensor]:
    """The whole model's weights and buffers; a tied one under its first name alone."""
    return {name.of: tensor for name, tensor in load_tensors(folder, lambda n: n.kind is Kind.MODEL).items()}


def named_state(folder: Path) -> dict[str, Tensor]:
    """The whole model's state dict under all the names that its own module has."""
    state = model_state(folder)
    aliases = load_progress(folder).get("aliases", {})
    return state | {name: state[first] for name, first in aliases.items() if first in state}


def whole_state(folder: Path, chain: LayerChain) -> dict[str, Tensor]:
    """A checkpoint's model for this chain.

    Raises:
        ConfigError: it was saved from another model.
    """
    state, expected = named_state(folder), chain.module.state_dict()
    if wrong := set(expected) ^ set(state):
        raise ConfigError(f"{folder}: was saved from another model; only one of the two has {min(wrong)}")
    for name, tensor in expected.items():
        if isinstance(tensor, Tensor) and tensor.shape != state[name].shape:
            there, here = tuple(state[name].shape), tuple(tensor.shape)
            raise ConfigError(f"{folder}: was saved from another model; {name} is {there} there and {here} here")
    for name, first in chain.aliases().items():
        if state[name] is not state[first] and not torch.equal(state[name], state[first]):
            raise ConfigError(
                f"{folder}: was saved with model.untie=true; {name} and {first} are two weights there, and one here"
            )
    return state
