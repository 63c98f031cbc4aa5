"""The settings of a run as typed values, a class for each open section."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from omegaconf import MISSING

from pipetrain.engine.errors import ConfigError, as_configured, check_flag, check_whole, is_whole
from pipetrain.runner.config import schema
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.messages import MessageSettings
from pipetrain.runner.config.optimizer import OptimizerSettings
from pipetrain.runner.config.phases import PhaseSettings, naming_phase
from pipetrain.runner.config.schema import TARGET, AveragingConfig, LoaderConfig, ModelConfig

_METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_OTHERS = ("loss", "perplexity", "s")
"""Names that records give to other numbers of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(LoaderConfig):
    """A data set, and how its samples are loaded; the target returns an object with map-style `train` and `eval`."""

    target: Target

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Self:
        """The settings of the section `dataset`."""
        loader = LoaderConfig(**{each.name: section[each.name] for each in fields(LoaderConfig)})
        _check_keys(loader.input_key, loader.target_key)
        check_flag("dataset.shuffle", loader.shuffle)
        check_flag("dataset.pin_memory", loader.pin_memory)
        check_whole("dataset.workers", loader.workers, least=0)
        if loader.prefetch is not None:
            check_whole("dataset.prefetch", loader.prefetch, least=1, otherwise="or null for 2")
            if not loader.workers:
                raise ConfigError(f"dataset.prefetch={loader.prefetch}: requires dataset.workers of at least 1")
        if loader.limit is not None:
            check_whole("dataset.limit", loader.limit, least=1, otherwise="or null for all samples")
        options = {name: value for name, value in section.items() if name not in vars(loader)}
        return cls(target=Target.of("dataset", options), **vars(loader))


def _check_keys(input_key: Any, target_key: Any) -> None:
    for setting, key in (("dataset.input_key", input_key), ("dataset.target_key", target_key)):
        names = key if isinstance(key, list) else [] if key is None else [key]
        if not all(isinstance(name, str) for name in names) or key == []:
            raise ConfigError(f"{setting}={as_configured(key)}: must be a name, a list of names or null")
    if input_key is not None and target_key is None:
        raise ConfigError(f"dataset.input_key={as_configured(input_key)}: requires dataset.target_key")


OF_EVERY_MODEL = ("weights", "strict", "untie", "output")
"""`model.*` options that pipetrain handles; the rest go to the target."""


@dataclass(frozen=True)
class ModelSettings:
    """A model: its target returns a module or a chain of layers; the other options are as in `ModelConfig`."""

    target: Target
    weights: str | None
    strict: bool
    untie: bool
    output: str | None

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Self:
        """The settings of the section `model`.

        Options that describe the data are passed to the target only if the user sets them.
        """
        left = {*OF_EVERY_MODEL, *(each.name for each in fields(ModelConfig) if section[each.name] is None)}
        options = {key: value for key, value in section.items() if key not in left}
        weights, strict, untie, output = (section[name] for name in OF_EVERY_MODEL)
        check_flag("model.strict", strict)
        check_flag("model.untie", untie)
        if not strict and weights is None:
            raise ConfigError("model.strict=false: requires model.weights")
        if not isinstance(weights, str | None):
            raise ConfigError(f"model.weights={as_configured(weights)}: must be a path, or null")
        return cls(Target.of("model", options), weights, strict, untie, None if output is None else str(output))

    @property
    def constructor_takes_weights(self) -> bool:
        """True if `weights` names weights that the target itself loads, as in torchvision."""
        is_name = self.weights is not None and self.weights.isidentifier()
        return is_name and "weights" in self.target.parameters()


@dataclass(frozen=True)
class ReplicaSettings:
    """Replicas of each stage.

    Attributes:
        counts: of each stage; None if unset.
        delay: updates after which replicas that train alone need the weights of each other; None if they average
            gradients.
    """

    counts: tuple[int, ...] | None = None
    scale_lr: bool = True
    delay: int | None = None

    @classmethod
    def of(cls, section: Mapping[str, Any], averaging: AveragingConfig) -> Self:
        """The settings of the section `partition`, without the options of its target, and of `averaging`."""
        counts, scale_lr = section["replicas"], section["scale_lr"]
        delay = averaging.delay if averaging.average == "weights" else None
        check_flag("partition.scale_lr", scale_lr)
        if counts is None:
            return cls(None, scale_lr, delay)
        if not isinstance(counts, list) or not counts or any(not is_whole(each) or each < 1 for each in counts):
            raise ConfigError(
                f"partition.replicas={as_configured(counts)}: must be a list with a positive number per stage, such as "
                "[2,1]"
            )
        return cls(tuple(counts), scale_lr, delay)


def replicas_train_alone(settings: Mapping[str, Any]) -> bool:
    """True if replicas of a run with these settings, as its files hold them, train alone."""
    return bool(settings.get("averaging", {}).get("average") == "weights")


@dataclass(frozen=True)
class MetricSettings:
    """A metric of evaluations: its target returns an object with `update` and `compute`.

    Attributes:
        higher_is_better: True if more is better; None: as the object says.
    """

    target: Target
    higher_is_better: bool | None

    @classmethod
    def of(cls, section: str, content: Any) -> Self:
        """The settings of the section of a metric, such as `metrics.f1`."""
        name = section.partition(".")[2]
        if not _METRIC_NAME.fullmatch(name) or name in _OTHERS:
            raise ConfigError(
                f"{section}: {name} cannot name a metric; use letters, digits and _, but not {', '.join(_OTHERS)}"
            )
        if not isinstance(content, Mapping):
            raise ConfigError(f"{section}={as_configured(content)}: {section}.{TARGET} is not set")
        options = dict(content)
        higher = options.pop("higher_is_better", None)
        if higher is not None:
            check_flag(f"{section}.higher_is_better", higher)
        return cls(Target.of(section, options), higher)

    def rises(self, metric: object) -> bool | None:
        """True if higher values of the metric are better; None if unknown."""
        higher = getattr(metric, "higher_is_better", None) if self.higher_is_better is None else self.higher_is_better
        return higher if isinstance(higher, bool) else None


@dataclass(frozen=True)
class Settings:
    """Everything that was asked of a run, checked as far as neither model nor data are needed.

    Attributes:
        choices: what was chosen of each group, such as {"model": "resnet20"}.
        metrics: of evaluations, by name, in addition to the loss's.
        callbacks: in addition to the trackers of `log.to`.
        phases: one after the other; a run without `phases` is one phase.
        stored: the whole configuration as `config.yaml` holds it: resolved, with `phases` written out.
    """

    choices: Mapping[str, str]
    dataset: DatasetSettings
    model: ModelSettings
    partition: Target
    replicas: ReplicaSettings
    averaging: AveragingConfig
    phases: tuple[PhaseSettings, ...]
    optimizer: OptimizerSettings
    lr_schedule: Target
    loss: Target
    metrics: Mapping[str, MetricSettings]
    callbacks: tuple[Target, ...]
    messages: MessageSettings
    executor: schema.ExecutorConfig
    train: schema.TrainConfig
    eval: schema.EvalConfig
    checkpoint: schema.CheckpointConfig
    launch: schema.LaunchConfig
    log: schema.LogConfig
    sweep: schema.SweepConfig
    planner: schema.PlannerConfig
    topology: schema.TopologyConfig
    profile: str | None
    seed: int
    device: str
    threads: int | None
    deterministic: bool
    resume: str | None
    trace: bool
    debug: bool
    stored: Mapping[str, Any]

    @property
    def torch_scheduler(self) -> Target | None:
        """The learning-rate schedule, if it is one of torch's, which take an optimizer and know no unit and warm-up."""
        if self.lr_schedule.path == MISSING or "optimizer" not in self.lr_schedule.parameters():
            return None
        options = {name: value for name, value in self.lr_schedule.options.items() if name not in ("unit", "warmup")}
        return replace(self.lr_schedule, options=options)

    def check_targets(self) -> None:
        """Raises a ConfigError for the first target that does not exist or take its options, unless it is unset."""
        for phase in self.phases:
            with naming_phase(phase.number):
                phase.schedule.check()
                phase.method.check()
        schedule = self.torch_scheduler or self.lr_schedule
        single = (self.partition, schedule, self.loss, *(metric.target for metric in self.metrics.values()))
        single = (*single, *self.messages.targets.values())
        for target in (self.dataset.target, self.model.target, self.optimizer.target, *single):
            if target.path != MISSING:
                target.check()
