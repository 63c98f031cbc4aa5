"""Turns a configuration into the objects of a run: data, layer chain, rules, optimizers."""

import inspect
import pydoc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import Tensor, nn
from torch.optim import Optimizer

from pipetrain.config import LOADER_KEYS
from pipetrain.data.loader import Loader
from pipetrain.errors import ConfigError
from pipetrain.executors.base import Rules
from pipetrain.losses import Loss
from pipetrain.lr_schedules import LearningRateSchedule
from pipetrain.methods import Method
from pipetrain.models.chain import LayerChain, chain_of
from pipetrain.optimizer import StageOptimizer
from pipetrain.schedules import Schedule

_FROM_DATA = ("channels", "classes", "size")
"""Parameters of a model's target that are filled from the data set unless the configuration sets them."""


@dataclass(frozen=True)
class Data:
    """The data set of a run and the order in which it passes."""

    dataset: Any
    train: Loader
    evaluation: Loader

    @property
    def example(self) -> tuple[Tensor, ...]:
        """The inputs of one training minibatch, data as they are."""
        return next(self.train.inputs(0, 0, 1))


def call_target(section: str, config: Mapping[str, Any], *args: Any, **extra: Any) -> Any:
    """What the Hydra target of a section of the configuration returns.

    Raises:
        ConfigError: the target does not exist, does not take these settings, or refuses one.
    """
    try:
        return instantiate({**config, **extra}, *args, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        reason = f"{type(cause).__name__}: {cause}" if cause is not None else str(error)
        raise ConfigError(f"{section}._target_={config.get('_target_')}: {' '.join(reason.split())}") from error


def build_data(config: Mapping[str, Any]) -> Data:
    """The data set and its loaders."""
    section, train = dict(config["dataset"]), config["train"]
    shuffle, limit, workers = (section.pop(name, None) for name in LOADER_KEYS)
    dataset = call_target("dataset", section)
    for part in ("train", "eval"):
        if not hasattr(dataset, part):
            raise ConfigError(
                f"dataset._target_={section['_target_']}: returned a {type(dataset).__name__} without `{part}`; "
                "a data set has map-style `train` and `eval`"
            )
    common = {"seed": config["seed"], "limit": limit, "workers": workers or 0}
    size = config["eval"]["batch_size"] or train["batch_size"] // train["microbatches"]
    return Data(
        dataset,
        Loader(
            dataset.train,
            batch_size=train["batch_size"],
            microbatches=train["microbatches"],
            shuffle=True if shuffle is None else shuffle,
            **common,
        ),
        Loader(dataset.eval, batch_size=size, shuffle=False, drop_short=False, **common),
    )


def build_chain(config: Mapping[str, Any], dataset: Any) -> LayerChain:
    """The model's layer chain, its initial weights drawn from the run's seed."""
    section = config["model"]
    extra = {
        name: getattr(dataset, name)
        for name in _accepted(section)
        if section.get(name) is None and hasattr(dataset, name)
    }
    torch.manual_seed(config["seed"])
    return chain_of(call_target("model", section, **extra))


def _accepted(section: Mapping[str, Any]) -> list[str]:
    try:
        parameters = inspect.signature(pydoc.locate(section["_target_"])).parameters  # type: ignore[arg-type]
    except (pydoc.ErrorDuringImport, ValueError, TypeError):
        return []  # calling the target will say what is wrong
    return [name for name in _FROM_DATA if name in parameters]


def build_loss(config: Mapping[str, Any]) -> Loss:
    """The loss of the last stage."""
    loss: Loss = call_target("loss", config["loss"])
    return loss


def build_schedule(config: Mapping[str, Any]) -> Schedule:
    """The run's schedule."""
    schedule: Schedule = call_target("schedule", config["schedule"])
    return schedule


def build_method(config: Mapping[str, Any]) -> Method:
    """The run's method."""
    method: Method = call_target("method", config["method"])
    return method


def build_rules(config: Mapping[str, Any], stages: int) -> Rules:
    """Schedule and method for so many stages."""
    return Rules(build_schedule(config), build_method(config), stages, config["train"]["microbatches"])


def build_rate(config: Mapping[str, Any], steps_per_epoch: int, total_steps: int) -> Callable[[int], float]:
    """The learning rate of each update."""
    schedule: LearningRateSchedule = call_target("lr_schedule", config["lr_schedule"])
    base = config["optimizer"].get("lr")
    if base is None:
        raise ConfigError("optimizer.lr is not set; learning-rate schedules scale it: +optimizer.lr=0.01")
    return lambda step: base * schedule.factor(step, steps_per_epoch, total_steps)


def build_torch_optimizer(config: Mapping[str, Any], parameters: list[nn.Parameter]) -> Optimizer:
    """torch's optimizer with the configured settings."""
    section = {name: value for name, value in config["optimizer"].items() if name != "clip_norm"}
    optimizer = call_target("optimizer", section, parameters)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"optimizer._target_={section['_target_']}: not a torch.optim.Optimizer")
    return optimizer


def optimizer_builder(
    config: Mapping[str, Any], rate: Callable[[int], float]
) -> Callable[[dict[str, nn.Parameter]], StageOptimizer]:
    """Makes the optimizer of a stage from its parameters by name."""
    return lambda named: StageOptimizer(lambda parameters: build_torch_optimizer(config, parameters), named, rate)


def total_steps(config: Mapping[str, Any], steps_per_epoch: int) -> int:
    """Optimizer steps of the whole run."""
    steps: int = config["train"]["epochs"] * steps_per_epoch
    limit = config["train"]["max_steps"]
    return steps if limit is None else min(steps, limit)
