"""Compatibility of a checkpoint with the model, the optimizer and the data of the run that resumes from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.config.settings import OptimizerSettings
from pipetrain.errors import ConfigError
from pipetrain.models.chain import LayerChain
from pipetrain.run.builders.optimizer import build_torch_optimizer
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.tensor_file import Kind


def check_weights(folder: Path, chain: LayerChain) -> None:
    """Checks that the checkpoint has the same weights and buffers as the chain.

    Raises:
        ConfigError: one is missing, or has another shape.
    """
    store.whole_state(folder, chain)


def check_optimizer(folder: Path, settings: OptimizerSettings) -> None:
    """Lets the optimizer take a step from what the checkpoint holds of one weight.

    Raises:
        ConfigError: it needs something else.
    """
    loaded = store.load_tensors(folder, lambda name: name.kind is Kind.OPTIMIZER)
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in loaded.items():
        states.setdefault(name.of, {})[name.key] = tensor
    if not states:
        return
    smallest, state = min(states.items(), key=lambda item: sum(tensor.numel() for tensor in item[1].values()))
    try:
        _step(settings, state, store.model_state(folder)[smallest])
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"optimizer: with its new settings {settings.target.path} cannot go on from the state in {folder} "
            f"({type(error).__name__}: {error}); leave them as they were, or start a run of its own without resume"
        ) from error


def _step(settings: OptimizerSettings, state: Mapping[str, Tensor], weight: Tensor) -> None:
    parameter = nn.Parameter(weight)
    parameter.grad = torch.zeros_like(weight)
    optimizer = build_torch_optimizer(settings, [parameter])
    optimizer.state[parameter] = dict(state)
    optimizer.step()


def vocabulary_sha256(dataset: Any) -> str | None:
    """The `vocabulary_sha256` of a data object, which identifies its vocabulary; None if it has none."""
    return getattr(dataset, "vocabulary_sha256", None)


def check_vocabulary(folder: Path, dataset: Any) -> None:
    """Checks that token ids have kept their meaning, as far as checkpoint and data set record it.

    Raises:
        ConfigError: they mean something else.
    """
    before, now = store.load_progress(folder).get("vocabulary_sha256"), vocabulary_sha256(dataset)
    if before is not None and before != now:
        raise ConfigError(
            f"dataset: its vocabulary is another than that of {folder}, whose token ids mean other text; take the data "
            "set, the text and the settings of the vocabulary that the checkpoint was trained with"
        )


def check_data(folder: Path, steps_per_epoch: int) -> None:
    """Checks that an epoch has as many steps as it had, or the run's place in the data would be another.

    Raises:
        ConfigError: it has not.
    """
    before = store.load_progress(folder).get("steps_per_epoch", steps_per_epoch)
    if before != steps_per_epoch:
        raise ConfigError(
            f"dataset: an epoch has {steps_per_epoch} steps now, and had {before} when {folder} was saved: the data "
            "set has changed; start a run of its own without resume"
        )
