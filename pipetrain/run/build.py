"""Turns a configuration into the objects of a run: data, layer chain, rules, optimizers."""

import inspect
import pydoc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import Tensor, nn
from torch.optim import Optimizer

from pipetrain.config.choices import check_pair
from pipetrain.config.phases import PhaseSettings, length, naming
from pipetrain.config.phases import settings as phase_settings
from pipetrain.config.schema import LOADER_KEYS
from pipetrain.data.loader import Loader
from pipetrain.errors import ConfigError
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.losses import Loss
from pipetrain.methods import Method
from pipetrain.models.chain import LayerChain, chain_of
from pipetrain.optim.lr_schedules import LearningRateSchedule
from pipetrain.optim.stage_optimizer import StageOptimizer
from pipetrain.planner.finegrained import stages_of_layers, weight_units
from pipetrain.program.recomputation import RecomputeSegments
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
    if "_target_" not in config:
        raise ConfigError(f"{section}={dict(config)}: names no class; {section}._target_ is missing")
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


def build_phases(
    config: Mapping[str, Any], names: Mapping[str, str], num_stages: int, stage_of: Mapping[int, int], data: Data
) -> list[Phase]:
    """The phases of a run; one where the configuration has none.

    Args:
        stages: D.
        stage_of: first layer of a stage -> the stage.

    Raises:
        ConfigError: a schedule or method takes other settings, they do not go together, or a phase never starts.
    """
    steps_per_epoch = len(data.train)
    total = total_steps(config, names, steps_per_epoch)
    segments = build_recompute_segments(config, num_stages, stage_of)
    phases: list[Phase] = []
    start = 0
    for number, settings in enumerate(phase_settings(config, names, steps_per_epoch)):
        if start >= total:
            raise ConfigError(
                f"phases[{number}] would start after step {start}, and the run ends at step {total}; raise "
                "train.epochs or train.max_steps, or shorten the phases before it"
            )
        with naming(config, number):
            rules = build_rules(settings, num_stages, config["train"]["microbatches"], segments)
        end = total if settings.steps is None else min(total, start + settings.steps)
        phases.append(Phase(rules, start, end))
        start = end
    return phases


def build_rules(
    settings: PhaseSettings, num_stages: int, num_microbatches: int, segments: RecomputeSegments | None
) -> PipelineRules:
    """The schedule and method of a phase.

    Raises:
        ConfigError: one takes other settings, or they do not go together.
    """
    schedule: Schedule = call_target("schedule", settings.schedule)
    method: Method = call_target("method", settings.method)
    check_pair(method, schedule, settings.names)
    return PipelineRules(schedule, method, num_stages, num_microbatches, segments)


def first_layers(chain: LayerChain, bounds: Sequence[tuple[int, int]], finegrained: bool) -> dict[int, int]:
    """First layer of a stage -> the stage; `bounds` as those of a Job."""
    if finegrained:
        return stages_of_layers(weight_units(chain), bounds)
    return {first: r for r, (first, _) in enumerate(bounds)}


def build_recompute_segments(
    config: Mapping[str, Any], num_stages: int, stage_of: Mapping[int, int]
) -> RecomputeSegments | None:
    """Which stages recompute together; None where none does.

    Raises:
        ConfigError: a boundary is not the first layer of a stage.
    """
    layers = config["train"]["recompute_boundaries"]
    if layers is None:
        return RecomputeSegments.of_single_stages(num_stages) if config["train"]["recompute"] else None
    if not isinstance(layers, list) or (wrong := [layer for layer in layers if layer not in stage_of]):
        raise ConfigError(
            f"train.recompute_boundaries={layers}: first layers of stages, of which there are "
            f"{', '.join(map(str, stage_of))}" + (f"; not {wrong[0]}" if isinstance(layers, list) else "")
        )
    return RecomputeSegments(tuple(sorted({0, *(stage_of[layer] for layer in layers)})), num_stages)


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


def total_steps(config: Mapping[str, Any], names: Mapping[str, str], steps_per_epoch: int) -> int:
    """Optimizer steps of the whole run: its epochs, train.max_steps or its phases, whichever ends first."""
    steps: int = config["train"]["epochs"] * steps_per_epoch
    limits = [config["train"]["max_steps"], length(list(phase_settings(config, names, steps_per_epoch)))]
    return min(steps, *(steps if limit is None else limit for limit in limits))
