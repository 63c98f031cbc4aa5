"""The trained model of a run as a plain module, and its data."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.seeding import python_draws, python_generators_kept
from pipetrain.runner.config.given_objects import with_objects
from pipetrain.runner.tracking.stored_settings import stored_settings
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.components.data import build_dataset
from pipetrain.runner.training.components.model import model_options


def trained_module(folder: Path, objects: Mapping[str, Any], *, trust: bool = False) -> nn.Module:
    """The module that the model's target returns, or a copy of the given one, with the weights of a checkpoint.

    These are averages if the checkpoint has any. `objects` take the place of targets; `trust`: see `stored_settings`.

    Raises:
        ConfigError: the module cannot be built, its target is not trusted, or the weights are of another one.
    """
    calls = [section for section in ("model", "dataset") if section not in objects]
    settings = stored_settings(store.run_of(folder), [] if "model" in objects else calls, trust=trust)
    settings = with_objects(settings, {name: each for name, each in objects.items() if name in ("model", "dataset")})
    target = settings.model.target
    target.check()
    with torch.random.fork_rng([]), python_generators_kept():
        options = (
            {} if "model" in objects else model_options(settings.model, build_dataset(settings.dataset, settings.seed))
        )
        torch.manual_seed(settings.seed)  # what the run drew is not all in its weights
        with python_draws(settings.seed):
            built = target.build(**options)
    module: nn.Module = built.module if isinstance(built, LayerChain) else built
    progress = store.load_progress(folder)
    try:
        _untie(module, progress.get("untied", {}), progress.get("aliases", {}))
        module.load_state_dict(contents.named_state(folder, averaged=True))
    except (AttributeError, RuntimeError) as error:  # of a module without a weight, or with another one
        raise ConfigError(f"{target.setting}: does not take the weights of {folder}: {one_line(error)}") from error
    return module


def data_of(folder: Path, objects: Mapping[str, Any], *, trust: bool = False) -> Any:
    """The data object of the run that a checkpoint is of, built again or given; arguments as of `trained_module`.

    Raises:
        ConfigError: it cannot be built, its target is not trusted, or it has another vocabulary than the checkpoint.
    """
    given = {name: each for name, each in objects.items() if name == "dataset"}
    settings = with_objects(stored_settings(store.run_of(folder), [] if given else ["dataset"], trust=trust), given)
    dataset = build_dataset(settings.dataset, settings.seed)
    store.check_vocabulary(folder, store.load_progress(folder), dataset)
    return dataset


def _untie(module: nn.Module, names: Iterable[str], aliases: Mapping[str, str]) -> None:
    """Gives the weights of these names, and of their aliases, memory of their own, as `model.untie` has in the run."""
    for name in names:
        weight = module.get_parameter(name)
        own = nn.Parameter(weight.detach().clone(), weight.requires_grad)
        for each in (name, *(alias for alias, first in aliases.items() if first == name)):
            owner, _, last = each.rpartition(".")
            setattr(module.get_submodule(owner), last, own)
