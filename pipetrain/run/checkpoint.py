"""Checkpoints: written by all stages together, complete or absent, loadable into any partition."""

import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from pipetrain.errors import ConfigError
from pipetrain.models.chain import LayerChain
from pipetrain.run.checkpoint_names import Kind, TensorName
from pipetrain.stage.base import BaseStage
from pipetrain.tracking.run_directory import RunDirectory

_PROGRESS = "progress.json"


def stage_tensors(stage: BaseStage) -> dict[str, Tensor]:
    """A stage's part of a checkpoint: weights, buffers, optimizer state and statistic under the whole model's names."""
    full, statistic = stage.full_names, stage.weights.statistic
    tensors = {TensorName(Kind.MODEL, name): tensor for name, tensor in stage.state().items()}
    for local, state in stage.optimizer.state().items():
        tensors.update({TensorName(Kind.OPTIMIZER, full[local], key): value for key, value in state.items()})
    if statistic is not None:
        for local, value in statistic.state().items():
            tensors[TensorName(Kind.STATISTIC, full[local], statistic.name)] = value
    return {str(name): tensor for name, tensor in tensors.items()}


def save(
    folder: Path,
    tensors: Mapping[str, Tensor],
    progress: Mapping[str, Any],
    *,
    coordinator: bool,
    barrier: Callable[[], None] | None,
) -> None:
    """Writes one checkpoint under another name and then renames it, so that none is ever half there.

    Args:
        folder: `checkpoints/step-XXXXXXXX`.
        tensors: this process's part.
        progress: where the run stands; the coordinator's is written.
        coordinator: whether this process renames.
        barrier: waits for all processes; None in a run of one process.
    """
    partial = folder.with_name(folder.name + ".partial")
    if coordinator:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    if barrier is not None:
        barrier()
    with _alone_is_fine():
        dcp.save(dict(tensors), checkpoint_id=str(partial), no_dist=barrier is None)
    if coordinator:
        (partial / _PROGRESS).write_text(json.dumps(progress))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    if barrier is not None:
        barrier()


@contextlib.contextmanager
def _alone_is_fine() -> Iterator[None]:
    """Silences torch's warning that one process saves or loads by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def load_progress(folder: Path) -> dict[str, Any]:
    """The progress that a checkpoint was saved with."""
    progress: dict[str, Any] = json.loads((folder / _PROGRESS).read_text())
    return progress


def load_tensors(folder: Path, selects: Callable[[TensorName], bool]) -> dict[TensorName, Tensor]:
    """The tensors whose names `selects` accepts, on the CPU, whichever process wrote them."""
    metadata = FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    state: dict[str, Any] = {
        name: torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
        for name, entry in metadata.items()
        if isinstance(entry, TensorStorageMetadata) and selects(TensorName.parse(name))
    }
    if state:
        with _alone_is_fine():
            dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    return {TensorName.parse(name): tensor for name, tensor in state.items()}


def restore(stage: BaseStage, folder: Path, step: int) -> None:
    """Puts a checkpoint's weights, buffers, optimizer state and statistics into a stage, as after `step` updates.

    Raises:
        ConfigError: the checkpoint was saved from another model.
    """
    local_names = {full: local for local, full in stage.full_names.items()}
    tensors = load_tensors(folder, lambda name: name.kind is not Kind.HISTORY and name.of in local_names)
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
    stage.optimizer.load_state(optimizer)
    stage.resume_at(step, statistics)


def load_history(folder: Path) -> dict[str, Tensor]:
    """The series that the run had recorded, by name."""
    return {str(name): tensor for name, tensor in load_tensors(folder, lambda n: n.kind is Kind.HISTORY).items()}


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run directory, oldest first."""
    folders = RunDirectory(run).checkpoints.glob("step-*")
    return sorted(path for path in folders if (path / _PROGRESS).is_file() and path.suffix == "")


def find(folder: str) -> Path:
    """The checkpoint in `folder`: itself, or the newest of a run directory.

    Raises:
        ConfigError: there is none.
    """
    path = Path(folder)
    if (path / _PROGRESS).is_file():
        return path.resolve()
    complete = checkpoints(path)
    if not complete:
        raise ConfigError(f"{folder}: no checkpoint here; a run directory has checkpoints/step-XXXXXXXX/")
    return complete[-1].resolve()


def at_step(run: Path, step: int | None) -> Path:
    """The checkpoint of a run directory at `step`, or its newest.

    Raises:
        ConfigError: there is none; names those that there are.
    """
    if step is None:
        return find(str(run))
    folder = RunDirectory(run).checkpoint(step)
    if not (folder / _PROGRESS).is_file():
        steps = ", ".join(str(int(path.name.removeprefix("step-"))) for path in checkpoints(run)) or "none"
        raise ConfigError(f"--step {step}: {run} has no checkpoint of that step; steps there are: {steps}")
    return folder.resolve()


def model_state(folder: Path) -> dict[str, Tensor]:
    """The whole model's state dict under the names that its own module has."""
    return {name.of: tensor for name, tensor in load_tensors(folder, lambda n: n.kind is Kind.MODEL).items()}


def whole_state(folder: Path, chain: LayerChain) -> dict[str, Tensor]:
    """A checkpoint's model for this chain.

    Raises:
        ConfigError: it was saved from another model.
    """
    state = model_state(folder)
    if wrong := set(chain.module.state_dict()) ^ set(state):
        raise ConfigError(f"{folder}: was saved from another model; only one of the two has {min(wrong)}")
    return state
