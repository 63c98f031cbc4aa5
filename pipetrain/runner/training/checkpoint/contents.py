"""The tensors of a checkpoint, loaded by name, into any partition."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.stage.base import BaseStage
from pipetrain.engine.stage.saved_state import Kind, Saved, TensorName, restore_stage, selected
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.config.schema import leaves
from pipetrain.runner.training.checkpoint import manifest, store, tensor_file
from pipetrain.runner.training.components.optimizer_checks import try_step


def check_state(chain: LayerChain) -> None:
    """Checks that checkpoints can hold all weights and buffers.

    Raises:
        ConfigError: they cannot hold one.
    """
    for name, value in chain.module.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not tensor_file.takes(value.dtype):
            kind = f"tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(
                f"model: {name} is a {kind}, which checkpoints cannot hold; dense real numbers and complex64 work"
            )


def load_tensors(folder: Path, kind: Kind, names: Collection[str] | None = None) -> Saved:
    """The tensors of one kind, of all or of some `names`, on the CPU: weight, buffer, layer or series -> key -> tensor.

    Raises:
        ConfigError: a file holds something else.
    """

    def selects(text: str) -> bool:
        name = TensorName.parse(text)
        return name.kind is kind and (names is None or name.of in names)

    loaded: dict[str, Tensor] = {}
    for path in (folder / entry.name for entry in manifest.entries(folder)):
        if path.suffix == tensor_file.SUFFIX:
            try:
                loaded |= tensor_file.read(path, selects)
            except ValueError as error:
                raise ConfigError(f"{path}: holds tensors that no checkpoint has: {error}") from error
    return selected(loaded, kind)


def restore(stage: BaseStage, folder: Path, step: int) -> None:
    """Loads a checkpoint's weights, buffers, averages, optimizer state, statistics and carried state into a stage.

    Averages that it does not hold start with its weights.

    Raises:
        ConfigError: the checkpoint was saved from another model.
    """
    restore_stage(stage, partial(load_tensors, folder), step, f"resume={folder}")


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
