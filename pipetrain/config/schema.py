"""The structured configuration: the settings that `pipetrain run` accepts, their types and defaults."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from pipetrain.errors import ConfigError


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, and in which portions."""

    epochs: int = 10
    """Passes over the training set."""
    max_steps: int | None = None
    """Stop after so many optimizer steps; null: all epochs."""
    batch_size: int = 64
    """Samples of a minibatch, one optimizer step."""
    microbatches: int = 1
    """N, the slices of a minibatch that pass the pipeline one by one; must divide batch_size."""
    recompute: bool = False
    """Keep only a stage's inputs between forward and backward, and recompute its activations before the backward."""
    recompute_boundaries: list[int] | None = None
    """First layers of segments of stages that recompute from the first one's input; simulated only; null: none."""
    target: Any = None  # a mapping or null, which Hydra cannot override where it is declared as such
    """Evaluation metrics at which the run ends, such as {top1: 66}; for `loss` and `perplexity` lower is better."""


@dataclass(frozen=True)
class EvalConfig:
    """When and in which portions the evaluation set passes the pipeline."""

    every_epochs: int = 1
    """Epochs between evaluations; the last epoch is always evaluated. 0: never."""
    batch_size: int | None = None
    """Samples of one message; null: those of a microbatch."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written; one is always written at the end."""

    at_start: bool = False
    """Also keep the initial weights, as step 0."""
    every_epochs: int = 1
    """Epochs between checkpoints; 0: none but the last."""
    every_steps: int | None = None
    """Also every so many steps. Each drains the pipeline, as the end of an epoch does."""


@dataclass(frozen=True)
class ExecutorConfig:
    """Where the stages live."""

    name: str = "distributed"

    @property
    def simulated(self) -> bool:
        """Whether all stages are in one process."""
        return self.name == "simulated"


@dataclass(frozen=True)
class LaunchConfig:
    """The worker processes."""

    hang_timeout: float = 600.0
    """Seconds after which a worker that neither computes on nor waits for a neighbor is ended and named."""


@dataclass(frozen=True)
class LogConfig:
    """What is written while training."""

    every_steps: int = 1
    """Steps between lines of metrics.jsonl and points in TensorBoard."""


def _loader() -> dict[str, Any]:
    return {"shuffle": True, "limit": None, "workers": 0}


def _rate_and_clipping() -> dict[str, Any]:
    return {"lr": None, "clip_norm": None}


@dataclass(frozen=True)
class Config:
    """Everything of a run. The open groups, of type dict, are Hydra targets."""

    dataset: dict[str, Any] = field(default_factory=_loader)
    """Beside a target and its options, what the loader does with any data set."""
    model: dict[str, Any] = field(default_factory=dict)
    partition: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=_rate_and_clipping)
    """Beside a target and its options, what the pipeline does with any optimizer."""
    lr_schedule: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    log: LogConfig = field(default_factory=LogConfig)
    phases: Any = None
    """A list of {schedule, method, steps or epochs}, one after the other; null: `schedule` and `method` throughout."""
    seed: int = 0
    """What initial weights, order, augmentation and dropout are drawn from."""
    device: str = "auto"
    """auto (CUDA where there is a device), cpu or cuda."""
    threads: int | None = None
    """Intra-op threads of a process; null: cores // stage processes, at least 1. Part of the numerics on the CPU."""
    resume: str | None = None
    """A run directory or checkpoint to continue, or `auto`: the newest checkpoint with an identical configuration."""
    trace: bool = False
    """Write trace.json, a Chrome trace of every operation and message; simulated runs write when each would happen."""
    debug: bool = False
    """Show tracebacks of errors in the configuration."""


def schema() -> DictConfig:
    """The schema as a configuration of defaults, which others may be merged into."""
    config: DictConfig = OmegaConf.structured(Config)
    for node in (config, *config.values()):
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, None)  # OmegaConf takes `frozen` for a ban on overrides
    return config


def register_schema() -> None:
    """Makes the schema known to Hydra as `schema`, the first entry of the defaults list."""
    ConfigStore.instance().store(name="schema", node=schema())


def config_dir() -> Path:
    """The folder of YAML files: inside an installed package, beside it in a checkout.

    Raises:
        ConfigError: it is missing.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if folder.is_dir():
            return folder
    raise ConfigError(f"the folder conf/ is missing beside {package}; install pipetrain again")
