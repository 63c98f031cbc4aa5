"""Checkpoints: what is in them, which there are, whether they are whole; loadable into any partition."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipetrain.config.moved import with_present_paths
from pipetrain.errors import ConfigError, one_line
from pipetrain.models.chain import LayerChain
from pipetrain.run.checkpoint import manifest, tensor_file
from pipetrain.run.checkpoint.progress_check import progress_fault
from pipetrain.run.checkpoint.tensor_file import Kind, TensorName
from pipetrain.stage.base import BaseStage
from pipetrain.stage.gradients import LossScaler
from pipetrain.tensors import Tensors
from pipetrain.tracking import strict_json
from pipetrain.tracking.run_directory import RunDirectory

PROGRESS, CONFIG = "progress.json", "config.json"
_OF_WEIGHTS = (Kind.MODEL, Kind.OPTIMIZER, Kind.STATISTIC)
_STEP = re.compile(r"step-\d+")


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


def load_progress(folder: Path) -> dict[str, Any]:
    """The progress that a checkpoint was saved with."""
    progress: dict[str, Any] = strict_json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
    return progress


@dataclass(frozen=True)
class StoredConfig:
    """The configuration that a checkpoint was made with.

    Attributes:
        settings: as `Settings.stored` has them.
        choices: what was chosen of each group.
    """

    settings: Mapping[str, Any]
    choices: Mapping[str, str]


def load_config(folder: Path) -> StoredConfig:
    """The configuration that a checkpoint was saved with."""
    return StoredConfig(**with_present_paths(strict_json.loads((folder / CONFIG).read_text(encoding="utf-8"))))


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


def problem(folder: Path) -> str | None:
    """Why a checkpoint cannot be used, in one line that names the file; None if it can."""
    if fault := manifest.problem(folder):
        return fault
    for name in (PROGRESS, CONFIG):
        if name not in manifest.names(folder):
            return f"{folder / name}: damaged: it is not in the manifest"
    try:
        fault = progress_fault(load_progress(folder))
    except (ValueError, OSError) as error:
        fault = one_line(error)
    if fault is not None:
        return f"{folder / PROGRESS}: damaged: {fault}"
    if not _has_settings(folder):
        return f"{folder / CONFIG}: damaged: it holds no settings"
    return None


def _has_settings(folder: Path) -> bool:
    try:
        config = load_config(folder)
    except (ValueError, TypeError, OSError):
        return False
    return isinstance(config.settings, dict) and isinstance(config.choices, dict)


@dataclass(frozen=True)
class NewestWhole:
    """The newest checkpoint of a run that can be used.

    Attributes:
        folder: of the checkpoint; None without one.
        faults: what is wrong with each newer one, in a line that names the file.
    """

    folder: Path | None
    faults: Sequence[str] = ()


def newest_whole(run: Path) -> NewestWhole:
    """The newest checkpoint of a run directory that is whole; damaged ones are passed over."""
    faults: list[str] = []
    for folder in reversed(checkpoints(run)):
        if (fault := problem(folder)) is None:
            return NewestWhole(folder.resolve(), tuple(faults))
        faults.append(fault)
    return NewestWhole(None, tuple(faults))


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run directory, oldest first: all that were completed, damaged since or not."""
    folders = RunDirectory(run).checkpoints.glob("step-*")
    return sorted(path for path in folders if _STEP.fullmatch(path.name) and path.is_dir())


def newest_undamaged(folder: str) -> Path:
    """The checkpoint in `folder`: itself, or the newest of a run directory.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = Path(folder)
    if is_checkpoint(path):
        return undamaged(path)
    complete = checkpoints(path)
    if not complete:
        raise ConfigError(f"{folder}: no checkpoint here; a run directory has checkpoints/step-XXXXXXXX/")
    return undamaged(complete[-1])


def is_checkpoint(folder: Path) -> bool:
    """True if this is the folder of a checkpoint, and not a run directory."""
    return folder.is_dir() and (_STEP.fullmatch(folder.name) is not None or (folder / PROGRESS).is_file())


def at_step(run: Path, step: int | None) -> Path:
    """The checkpoint of a run directory at `step`, or its newest.

    Raises:
        ConfigError: there is none, with the names of those that there are; or it is damaged.
    """
    if step is None:
        return newest_undamaged(str(run))
    folder = RunDirectory(run).checkpoint(step)
    if not folder.is_dir():
        steps = ", ".join(str(step_of(path)) for path in checkpoints(run)) or "none"
        raise ConfigError(f"--step {step}: {run} has no checkpoint of that step; steps there are: {steps}")
    return undamaged(folder)


def step_of(folder: Path) -> int:
    """The step in the name of a checkpoint."""
    return int(folder.name.removeprefix("step-"))


def undamaged(folder: Path) -> Path:
    """The checkpoint, every file of which has been read and found as it was written.

    Raises:
        ConfigError: it is damaged; names the newest one before it that is not.
    """
    folder = folder.resolve()  # `.` and a bare name say nothing of the run around
    if (fault := problem(folder)) is None:
        return folder
    earlier = (path for path in reversed(checkpoints(folder.parent.parent)) if path.name < folder.name)
    whole = next((path for path in earlier if problem(path) is None), None)
    raise ConfigError(fault if whole is None else f"{fault}; the newest one before it that is whole is {whole}")


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
