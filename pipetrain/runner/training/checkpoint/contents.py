"""The tensors of a checkpoint, loaded by name, into any partition."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.stage.base import BaseStage
from pipetrain.engine.stage.saved_state import Kind, Saved, TensorName, restore_stage, selected
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.config.schema import leaves
from pipetrain.runner.config.settings import replicas_train_alone
from pipetrain.runner.training.checkpoint import manifest, store, tensor_file
from pipetrain.runner.training.components.optimizer_step import try_step

_OF_REPLICAS = "averaging.average=weights"
"""The setting that makes the mean over replicas."""


def check_state(chain: LayerChain) -> None:
    """Raises a ConfigError for a weight or buffer that checkpoints cannot hold."""
    for name, value in chain.module.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not tensor_file.takes(value.dtype):
            kind = f"tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(
                f"model: {name} is a {kind}, which checkpoints cannot hold; dense real numbers and complex64 work"
            )


def load_tensors(folder: Path, kind: Kind) -> Saved:
    """The tensors of one kind, on the CPU: weight, buffer, layer or series -> key -> tensor.

    Their memory is the files, mapped: nothing is read before it is used. Only files that hold one of them are opened.

    Raises:
        ConfigError: a file holds something else.
    """
    return _of_kinds(folder, [kind])[0]


def _of_kinds(folder: Path, kinds: Sequence[Kind], names: Collection[str] | None = None) -> list[Saved]:
    places = {
        str(name): path
        for name, path in _places(folder).items()
        if name.kind in kinds and (names is None or name.of in names)
    }
    tensors = dict(tensor_file.mapped(places))
    return [selected(tensors, kind) for kind in kinds]


def _places(folder: Path) -> dict[TensorName, Path]:
    """Name of each tensor -> its file, file by file; of replicas that train alone, the first."""
    return {name: path for name, path in _places_of_all(folder).items() if not name.replica}


def _places_of_all(folder: Path) -> dict[TensorName, Path]:
    """Name of each tensor of each replica -> its file, file by file.

    Raises:
        ConfigError: a name is not that of a tensor of a checkpoint.
    """
    found: dict[TensorName, Path] = {}
    for entry in manifest.entries(folder):
        try:
            found.update({name: folder / entry.name for name in map(TensorName.parse, entry.tensors)})
        except ValueError as error:
            raise ConfigError(f"{folder / entry.name}: holds tensors that no checkpoint has: {error}") from error
    return found


def restore(stages: Iterable[BaseStage], folder: Path, step: int) -> None:
    """Loads a checkpoint's weights, buffers, averages, optimizer state, statistics and carried state into stages.

    Only files that hold some of it are opened, once for each stage. Averages that the checkpoint does not hold start
    with its weights. If no stage had the same layers, the loss scale is the smallest in these files.

    Raises:
        ConfigError: the checkpoint was saved from another model.
    """
    places = _places_of_all(folder)
    saved = {name.replica for name in places}
    for stage in stages:
        replica = stage.state_of if stage.state_of in saved else 0  # as where replicas averaged gradients before
        own = {name: path for name, path in places.items() if name.replica == replica}
        _restore(stage, own, step, f"resume={folder}", replica)


def _restore(stage: BaseStage, places: Mapping[TensorName, Path], step: int, source: str, replica: int) -> None:
    ends = () if stage.messages is None else stage.messages.state()
    held = {*stage.full_names.values(), *stage.carried.names, stage.layers, *ends}
    files = {path for name, path in places.items() if name.of in held}
    if stage.scaler is not None and not files:  # new layers without a tensor scale the gradients that pass through
        files = {*places.values()}
    needed = {
        str(name): path
        for name, path in places.items()
        if path in files and (name.of in held or name.kind is Kind.SCALER)
    }
    tensors = dict(tensor_file.mapped(needed))

    def load(kind: Kind, names: Collection[str] | None) -> Saved:
        saved = selected(tensors, kind, names, replica=replica)
        if kind in (Kind.MODEL, Kind.AVERAGE):
            return saved  # the stage copies them; other tensors it may keep
        return {of: {key: tensor.clone() for key, tensor in values.items()} for of, values in saved.items()}

    restore_stage(stage, load, step, source)


def check_optimizer(folder: Path, settings: OptimizerSettings, device: str = "cpu") -> None:
    """Raises a ConfigError if the optimizer cannot take a step from the state in a checkpoint, as another one would."""
    states, model = _of_kinds(folder, [Kind.OPTIMIZER, Kind.MODEL])
    if not states:
        return
    try:
        try_step(settings, {name: model[name][""] for name in states}, states, device=device)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"optimizer: with these settings {settings.target.path} cannot continue from the state in {folder} "
            f"({type(error).__name__}: {error}); give those of before, or start a new run without resume"
        ) from error


def ends_of_links(folder: Path) -> set[str]:
    """Names of the ends of links whose format has state in a checkpoint."""
    return {name.of for name in _places(folder) if name.kind is Kind.MESSAGES}


def load_history(folder: Path) -> dict[str, Tensor]:
    """The series that the run had recorded, by name."""
    return {f"{Kind.HISTORY}.{name}": values[""] for name, values in load_tensors(folder, Kind.HISTORY).items()}


def model_state(folder: Path, *, averaged: bool = False, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """The whole model's weights and buffers, or those of some names; a tied one under its first name alone.

    With `averaged`, the averages of weights in place of those that have one. Their memory is as of `load_tensors`.
    """
    kinds = [Kind.MODEL, Kind.AVERAGE] if averaged else [Kind.MODEL]
    return {name: each[""] for saved in _of_kinds(folder, kinds, names) for name, each in saved.items()}


def averages_of(folder: Path) -> str | None:
    """The setting that made a checkpoint's averages of weights; None if it has none."""
    settings = store.load_config(folder)["settings"]
    if replicas_train_alone(settings):
        return _OF_REPLICAS
    decay = dict(leaves(settings)).get("train.ema")
    return None if decay is None else f"train.ema={decay}"


def averages_note(folder: Path, *, raw: bool) -> str | None:
    """How the weights that a command takes from a checkpoint are averaged; None if it has no averages."""
    if (setting := averages_of(folder)) is None:
        return None
    plain = "of replica 0" if setting == _OF_REPLICAS else "not averaged"
    return f"{plain}, though {setting}" if raw else f"averaged with {setting}; --raw: {plain}"


def named_state(folder: Path, *, averaged: bool = False) -> dict[str, Tensor]:
    """The whole model's state dict under all the names that its own module has; `averaged` as in `model_state`."""
    state = model_state(folder, averaged=averaged)
    aliases = store.load_progress(folder).get("aliases", {})
    return state | {name: state[first] for name, first in aliases.items() if first in state}


def check_model(folder: Path, chain: LayerChain) -> None:
    """Raises a ConfigError if a checkpoint is of another model. Of its values, only those of tied weights are read."""
    state = named_state(folder)
    expected = chain.module.state_dict()
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


def weights_in_order(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The whole model's weights and buffers in the order of their names, each in memory only while it is used."""
    files = {name.of: path for name, path in _places(folder).items() if name.kind is Kind.MODEL}
    places = {str(TensorName(Kind.MODEL, of)): files[of] for of in sorted(files)}
    for text, tensor in tensor_file.mapped(places):
        yield TensorName.parse(text).of, tensor
