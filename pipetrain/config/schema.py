"""The typed configuration: what `pipetrain run` accepts, and the checks that need no model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from pipetrain.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
LOADER_KEYS = ("shuffle", "limit", "workers")
"""Settings of `dataset` that are the loader's, and are taken out before the data set's target is called."""


@dataclass
class TrainConfig:
    """How long and in which portions."""

    epochs: int = 10
    """Passes over the training set."""
    max_steps: int | None = None
    """Stop after so many optimizer steps; null: all epochs."""
    batch_size: int = 64
    """Samples of a minibatch, one optimizer step."""
    microbatches: int = 1
    """N, the slices of a minibatch that pass the pipeline one by one; must divide batch_size."""
    recompute: bool = False
    """Keep only a stage's inputs between forward and backward, and compute its activations again before the latter."""
    recompute_boundaries: Any = None
    """First layers of segments of stages that recompute from the first one's input; simulated only; null: none."""
    target: Any = None
    """Evaluation metrics at which the run ends, such as {top1: 66}; for `loss` and `perplexity` lower is better."""


@dataclass
class EvalConfig:
    """When and in which portions the evaluation set passes the pipeline."""

    every_epochs: int = 1
    """Epochs between evaluations; the last epoch is always evaluated. 0: never."""
    batch_size: int | None = None
    """Samples of one message; null: those of a microbatch."""


@dataclass
class CheckpointConfig:
    """When checkpoints are written; one is always written at the end."""

    at_start: bool = False
    """Also keep the initial weights, as step 0."""
    every_epochs: int = 1
    """Epochs between checkpoints; 0: none but the last."""
    every_steps: int | None = None
    """Also every so many steps. Each drains the pipeline, as the end of an epoch does."""


@dataclass
class ExecutorConfig:
    """Where the stages live."""

    name: str = "distributed"


@dataclass
class LaunchConfig:
    """The worker processes."""

    hang_timeout: float = 600.0
    """Seconds after which a worker that neither computes on nor waits for a neighbour is ended and named."""


@dataclass
class LogConfig:
    """What is written while training."""

    every_steps: int = 1
    """Steps between lines of metrics.jsonl and points in TensorBoard."""


@dataclass
class Config:
    """Everything of a run. The open groups are Hydra targets."""

    dataset: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    partition: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
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
    """A run directory or checkpoint to continue, or `auto`: the newest checkpoint of this very configuration."""
    trace: bool = False
    """Write trace.json, a Chrome trace of every operation and message; simulated runs write when each would happen."""
    debug: bool = False
    """Show tracebacks of errors in the configuration."""


def register_schema() -> None:
    """Makes the schema known to Hydra as `schema`, the first entry of the defaults list."""
    ConfigStore.instance().store(name="schema", node=Config)


def config_dir() -> Path:
    """The folder of YAML files: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if folder.is_dir():
            return folder
    raise ConfigError(f"the folder conf/ is missing beside {package}; install pipetrain again")


def check(config: dict[str, Any]) -> None:
    """The checks that need neither model nor data.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    train = config["train"]
    for setting, least in (("epochs", 1), ("batch_size", 1), ("microbatches", 1), ("max_steps", 1)):
        _check_least("train", train, setting, least)
    for section, setting in (("eval", "every_epochs"), ("checkpoint", "every_epochs")):
        _check_least(section, config[section], setting, 0)
    for section, setting in (("eval", "batch_size"), ("checkpoint", "every_steps"), ("log", "every_steps")):
        _check_least(section, config[section], setting, 1)
    batch, microbatches = train["batch_size"], train["microbatches"]
    if batch % microbatches:
        near = [n for n in range(1, batch + 1) if batch % n == 0]
        choices = ", ".join(str(n) for n in sorted(near, key=lambda n: abs(n - microbatches))[:3])
        raise ConfigError(
            f"train.batch_size={batch} is not a multiple of train.microbatches={microbatches}; "
            f"microbatches that divide it: {choices}"
        )
    target = train["target"]
    if target is not None and not (
        isinstance(target, dict) and target and all(isinstance(value, int | float) for value in target.values())
    ):
        raise ConfigError(f"train.target={target}: metrics and the values to reach, such as {{top1: 66}}")
    if config["device"] not in DEVICES:
        raise ConfigError(f"device={config['device']}: one of {', '.join(DEVICES)}")
    if config["threads"] is not None and config["threads"] < 1:
        raise ConfigError(f"threads={config['threads']}: at least 1, or null for the cores divided by the stages")
    if config["launch"]["hang_timeout"] <= 0:
        raise ConfigError(f"launch.hang_timeout={config['launch']['hang_timeout']}: seconds above 0")


def _check_least(section: str, values: dict[str, Any], setting: str, least: int) -> None:
    value = values[setting]
    if value is not None and value < least:
        raise ConfigError(f"{section}.{setting}={value}: at least {least}")
