"""A stage's state as named tensors: saved by stage, and restored into any partition of the same model."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.stage.base import BaseStage


class Kind(StrEnum):
    """Kind of a saved tensor."""

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
    MESSAGES = "messages"
    """State of the format at one end of a link."""
    REPLICAS = "replicas"
    """A weight's entry of the state in which replicas average it."""
    SCALER = "scaler"
    """The factor of a scaled loss, of a stage: it is named after its layers."""
    HISTORY = "run"
    """A series that a run has recorded."""


_KEYED = (Kind.OPTIMIZER, Kind.STATISTIC, Kind.CARRIED, Kind.MESSAGES, Kind.REPLICAS)


@dataclass(frozen=True)
class TensorName:
    """The name of one tensor, such as `model.conv.weight` or `optimizer.conv.weight/exp_avg`.

    Attributes:
        kind: first part of the name.
        of: the weight, buffer, layer, end of a link or series that it belongs to, as the whole model or the run calls
            it.
        key: the entry of the optimizer's state, the name of the statistic, the number of the layer's tensor, or the
            name in the format's or the replica's state; else empty.
        replica: the replica of a stage that it belongs to, where replicas train alone: `1@model.conv.weight`.
    """

    kind: Kind
    of: str
    key: str = ""
    replica: int = 0

    @override
    def __str__(self) -> str:
        whose = f"{self.replica}@" if self.replica else ""
        return f"{whose}{self.kind}.{self.of}/{self.key}" if self.kind in _KEYED else f"{whose}{self.kind}.{self.of}"

    @classmethod
    def parse(cls, name: str) -> "TensorName":
        """The name that prints as `name`."""
        kind, _, rest = name.partition(".")
        replica, _, kind = kind.rpartition("@")
        of, _, key = rest.rpartition("/") if kind in _KEYED else (rest, "", "")
        return cls(Kind(kind), of, key, int(replica or 0))


Saved = Mapping[str, Mapping[str, Tensor]]
"""Tensors of one kind: `of` and `key` of their names -> tensor."""
Load = Callable[[Kind, Collection[str] | None], Saved]
"""Returns the saved tensors of a kind, of all or of some `of`; they may be on any device."""


def stage_tensors(stage: BaseStage, *, shared: bool = False) -> dict[str, Tensor]:
    """A stage's weights, buffers, averages, optimizer state, statistics, carried state and loss scale; not copied.

    A weight that several stages hold belongs to the first of them; with `shared`, to each.
    """
    full = stage.full_names
    tensors = {TensorName(Kind.MODEL, name): tensor for name, tensor in stage.state().items()}
    tensors.update({TensorName(Kind.AVERAGE, name): tensor for name, tensor in stage.averages.items()})
    for local, state in stage.optimizer.state().items():
        tensors.update({TensorName(Kind.OPTIMIZER, full[local], key): value for key, value in state.items()})
    for statistic, values in stage.statistics.items():
        tensors.update({TensorName(Kind.STATISTIC, full[local], statistic): value for local, value in values.items()})
    for carrier, carried in stage.carried.tensors().items():
        tensors.update({TensorName(Kind.CARRIED, carrier, str(i)): value for i, value in enumerate(carried)})
    if stage.scaler is not None:
        tensors[TensorName(Kind.SCALER, stage.layers)] = stage.scaler.state()
    for local, kept in ({} if stage.replica_weights is None else stage.replica_weights.state()).items():
        tensors.update({TensorName(Kind.REPLICAS, full[local], key): value for key, value in kept.items()})
    for end, of_end in ({} if stage.messages is None else stage.messages.state()).items():
        tensors.update({TensorName(Kind.MESSAGES, end, key): value for key, value in of_end.items()})
    own = {name: tensor for name, tensor in tensors.items() if shared or name.of not in stage.copied}
    return {str(replace(name, replica=stage.state_of)): tensor for name, tensor in own.items()}


def restore_stage(stage: BaseStage, load: Load, updates: int, source: str) -> None:
    """Restores the output of `stage_tensors`, of this or of another partition of the model.

    Averages that were not saved start with the weights.

    Args:
        stage: has trained on nothing yet.
        load: returns what was saved.
        updates: number of updates before it was saved.
        source: what `load` reads, for errors.

    Raises:
        ConfigError: a weight or buffer of the stage was not saved, or the state of its replica.
    """
    # of a weight that layers of the stage share, the optimizer knows the first name
    local_names = {full: local for local, full in reversed(stage.full_names.items())}
    model = load(Kind.MODEL, local_names)
    if stage.state_of and not model:
        raise ConfigError(
            f"{source}: has no weights of replica {stage.state_of}, which trains alone; it was saved from fewer "
            "replicas, or from replicas that average gradients"
        )
    if missing := local_names.keys() - model.keys():
        raise ConfigError(f"{source}: was saved from another model, without {min(missing)}")
    with torch.no_grad():
        for full, target in stage.state().items():
            target.copy_(model[full][""])
    if stage.weights.average is not None:
        averages = load(Kind.AVERAGE, local_names)
        known = {local_names[full]: values[""] for full, values in averages.items()}
        stage.weights.average.load({**stage.weights.trainable, **known})
    # the same stage's scale, else the smallest of other stages; none if the loss was not scaled before
    if stage.scaler is not None and (scales := load(Kind.SCALER, None)):
        saved = scales.get(stage.layers) or min(scales.values(), key=lambda state: state[""][0].item())
        stage.scaler.load_state(saved[""])
    optimizer = load(Kind.OPTIMIZER, local_names)
    stage.optimizer.load_state({local_names[full]: state for full, state in optimizer.items()})
    carried = load(Kind.CARRIED, stage.carried.names)
    in_order = {layer: [state[key] for key in sorted(state, key=int)] for layer, state in carried.items()}
    stage.carried.restore({layer: tuple(t.to(stage.device) for t in tensors) for layer, tensors in in_order.items()})
    if stage.messages is not None:
        stage.messages.load_state(load(Kind.MESSAGES, stage.messages.state()))
    if stage.replica_weights is not None:
        averaged = load(Kind.REPLICAS, local_names)
        stage.replica_weights.load_state({local_names[full]: state for full, state in averaged.items()})
    stage.resume_at(updates, _by_statistic(load(Kind.STATISTIC, local_names), local_names))


def _by_statistic(saved: Saved, local_names: Mapping[str, str]) -> dict[str, dict[str, Tensor]]:
    statistics: dict[str, dict[str, Tensor]] = {}
    for full, values in saved.items():
        for statistic, value in values.items():
            statistics.setdefault(statistic, {})[local_names[full]] = value
    return statistics


def selected(
    tensors: Mapping[str, Tensor], kind: Kind, names: Collection[str] | None = None, *, replica: int = 0
) -> Saved:
    """Tensors of one kind from the output of `stage_tensors`, optionally only those of some `names`."""
    found: dict[str, dict[str, Tensor]] = {}
    beginning = f"{replica}@{kind}." if replica else f"{kind}."
    for text in (text for text in tensors if text.startswith(beginning)):
        name = TensorName.parse(text)
        if names is None or name.of in names:
            found.setdefault(name.of, {})[name.key] = tensors[text]
    return found
