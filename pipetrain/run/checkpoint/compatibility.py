"""Compatibility of a checkpoint with the optimizer and the vocabulary of the run that resumes from it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.config.settings import OptimizerSettings
from pipetrain.errors import ConfigError
from pipetrain.run.builders.optimizer import build_torch_optimizer
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.contents import Kind, load_tensors, model_state


def check_optimizer(folder: Path, settings: OptimizerSettings) -> None:
    """Lets the optimizer take a step from what the checkpoint holds of its smallest weight.

    Raises:
        ConfigError: the optimizer needs other state.
    """
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_tensors(folder, lambda name: name.kind is Kind.OPTIMIZER).items():
        states.setdefault(name.of, {})[name.key] = tensor
    if not states:
        return
    smallest, state = min(states.items(), key=lambda item: sum(tensor.numel() for tensor in item[1].values()))
    parameter = nn.Parameter(model_state(folder)[smallest])
    parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer = build_torch_optimizer(settings, [parameter])
        optimizer.state[parameter] = state
        optimizer.step()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"optimizer: with its new settings {settings.target.path} cannot continue from the state in {folder} "
            f"({type(error).__name__}: {error}); leave them as they were, or start a new run without resume"
        ) from error


def vocabulary_sha256(dataset: Any) -> str | None:
    """The `vocabulary_sha256` of a data object, which identifies its vocabulary; None if it has none."""
    return getattr(dataset, "vocabulary_sha256", None)


def check_vocabulary(folder: Path, dataset: Any) -> None:
    """Checks that token ids have kept their meaning, as far as checkpoint and data set record it.

    Raises:
        ConfigError: the vocabulary is another.
    """
    before = store.load_progress(folder).get("vocabulary_sha256")
    if before is not None and before != vocabulary_sha256(dataset):
        raise ConfigError(
            f"dataset: its vocabulary is not that of {folder}, so token ids mean other text; use the data set, the "
            "text and the vocabulary settings that the checkpoint was trained with"
        )
