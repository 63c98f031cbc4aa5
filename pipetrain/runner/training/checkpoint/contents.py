"""The tensors of a checkpoint: saved by stage, and loaded by name, into any partition."""

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.stage.base import BaseStage
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.config.schema import leaves
from pipetrain.runner.training.builders.optimizer import try_step
from pipetrain.runner.training.checkpoint import manifest, store, tensor_file
from pipetrain.runner.training.checkpoint.tensor_name import Kind, TensorName


def stage_tensors(stage: BaseStage) -> dict[str, Tensor]:
    """A stage's part of a checkpoint: weights, buffers, averages, optimizer state, statistic and carried state.

    A weight that several stages hold is in the part of the first of them.
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
    return {str(name): tensor for name, tensor in tensors.items() if name.of not in stage.copied}


def load_tensors(folder: Path, kind: Kind, names: Collection[str] | None = None) -> dict[str, dict[str, Tensor]]:
    """The tensors of one kind, of all or of some `names`, on the CPU: weight, buffer, layer or series -> key -> tensor.

    Raises:
        ConfigError: a file holds something else.
    """

    def selects(text: str) -> bool:
        name = TensorName.parse(text)
        return name.kind is kind and (names is None or name.of in names)

    loaded: dict[str, dict[str, Tensor]] = {}
    for path in (folder / entry.name for entry in manifest.entries(folder)):
        if path.suffix == tensor_file.SUFFIX:
            try:
                tensors = tensor_file.read(path, selects)
            except ValueError as error:
                raise ConfigError(f"{path}: holds tensors that no checkpoint has: {error}") from error
            for name, tensor in ((TensorName.parse(text), tensor) for text, tensor in tensors.items()):
                loaded.setdefault(name.of, {})[name.key] = tensor
    return loaded


def restore(stage: BaseStage, folder: Path, step: int) -> None:
    """Loads a checkpoint's weights, buffers, averages, optimizer state, statistics and carried state into a stage.

    Averages that it does not hold start with its weights.

    Raises:
        ConfigError: the checkpoint was saved from another model.
    """
    local_names: dict[str, str] = {}
    for local, full in stage.full_names.items():
        local_names.setdefault(full, local)  # of a weight that layers of the stage share, the optimizer knows the first
    model = load_tensors(folder, Kind.MODEL, local_names)
    if missing := local_names.keys() - model.keys():
        raise ConfigError(f"resume={folder}: was saved from another model, without {min(missing)}")
    with torch.no_grad():
        for full, target in stage.state().items():
            target.copy_(model[full][""])
    if stage.weights.average is not None:
        averages = load_tensors(folder, Kind.AVERAGE, local_names)
        known = {local_names[full]: values[""] for full, values in averages.items()}
        stage.weights.average.load({**stage.weights.trainable, **known})
    statistics: dict[str, dict[str, Tensor]] = {}
    for full, values in load_tensors(folder, Kind.STATISTIC, local_names).items():
        for statistic, value in values.items():
            statistics.setdefault(statistic, {})[local_names[full]] = value
    # the same stage's scale, else the smallest of other stages; none if the loss was not scaled before
    if stage.scaler is not None and (scales := load_tensors(folder, Kind.SCALER)):
        saved = scales.get(stage.layers) or min(scales.values(), key=lambda state: state[""][0].item())
        stage.scaler.load_state(saved[""])
    optimizer = load_tensors(folder, Kind.OPTIMIZER, local_names)
    stage.optimizer.load_state({local_names[full]: state for full, state in optimizer.items()})
    carried = load_tensors(folder, Kind.CARRIED, stage.carried.names)
    in_order = {layer: [state[key] for key in sorted(state, key=int)] for layer, state in carried.items()}
    stage.carried.restore({layer: tuple(t.to(stage.device) for t in tensors) for layer, tensors in in_order.items()})
    stage.resume_at(step, statistics)


def check_optimizer(folder: Path, settings: OptimizerSettings, device: str = "cpu") -> None:
    """Lets the optimizer take a step from what the checkpoint holds, on the CPU or else on the run's device.

    Raises:
        ConfigError: the optimizer needs other state.
    """
    states = load_tensors(folder, Kind.OPTIMIZER)
    if not states:
        return
    model = model_state(folder)
    try:
        try_step(settings, {name: model[name] for name in states}, states, device=device)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"optimizer: with its new settings {settings.target.path} cannot continue from the state in {folder} "
            f"({type(error).__name__}: {error}); leave them as they were, or start a new run without resume"
        ) from error


def load_history(folder: Path) -> dict[str, Tensor]:
    """The series that the run had recorded, by name."""
    return {f"{Kind.HISTORY}.{name}": values[""] for name, values in load_tensors(folder, Kind.HISTORY).items()}


def model_state(folder: Path, *, averaged: bool = False, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """The whole model's weights and buffers, or those with these names; a tied one under its first name alone.

    With `averaged`, the averages of weights in place of those that have one.
    """
    kinds = (Kind.MODEL, Kind.AVERAGE) if averaged else (Kind.MODEL,)
    return {name: values[""] for kind in kinds for name, values in load_tensors(folder, kind, names).items()}


def averages_of(folder: Path) -> float | None:
    """The decay of a checkpoint's averages of weights; None if it has none."""
    decay: float | None = dict(leaves(store.load_config(folder)["settings"])).get("train.ema")
    return decay


def averages_note(folder: Path, *, raw: bool) -> str | None:
    """How the weights that a command takes from a checkpoint are averaged; None if it has no averages."""
    if (decay := averages_of(folder)) is None:
        return None
    return f"not averaged, though train.ema={decay}" if raw else f"averaged with train.ema={decay}; --raw: not averaged"


def named_state(folder: Path, *, averaged: bool = False) -> dict[str, Tensor]:
    """The whole model's state dict under all the names that its own module has; `averaged` as in `model_state`."""
    state = model_state(folder, averaged=averaged)
    aliases = store.load_progress(folder).get("aliases", {})
    return state | {name: state[first] for name, first in aliases.items() if first in state}


def whole_state(folder: Path, chain: LayerChain, *, averaged: bool = False) -> dict[str, Tensor]:
    """A checkpoint's model for this chain; `averaged` as in `model_state`.

    Raises:
        ConfigError: it was saved from another model.
    """
    state, expected = named_state(folder, averaged=averaged), chain.module.state_dict()
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
