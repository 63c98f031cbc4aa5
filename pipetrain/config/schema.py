"""The structured configuration: the settings that `pipetrain run` accepts, their types and defaults."""

import functools
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from pipetrain.errors import ConfigError

TARGET = "_target_"
"""The key of an open section that names a class or function."""


@dataclass(frozen=True)
class LoaderConfig:
    """How samples are read, of any data set, your own included."""

    shuffle: bool = True
    """Reshuffle the training set every epoch; false keeps its order."""
    limit: int | None = None
    """Use only the first so many training samples, and as many evaluation samples; null: all."""
    workers: int = 0
    """Processes that load samples for a stage; 0: the stage loads them itself."""
    prefetch: int | None = None
    """Minibatches that each worker reads ahead; null: 2."""
    input_key: Any = None  # a name or a list
    """For samples that are dicts: the key of the input, or a list of keys; null: all but dataset.target_key."""
    target_key: Any = None  # a name or a list
    """For samples that are dicts: the key of the target, such as labels; null: samples are (input, target) pairs."""
    pin_memory: bool = False
    """Pin minibatches as they are loaded, by a thread with dataset.workers; false: just before the copy to CUDA."""


@dataclass(frozen=True)
class ModelConfig:
    """What any model may be told, your own included; what comes after `output` only those that ask for it by name."""

    untie: bool = False
    """Make separate weights of one that several layers share: asynchronous stages cannot share any."""
    output: Any = None  # a name or a number
    """The entry of what the forward returns that goes to the loss, such as `logits` or 0, of a model that is cut along
    its graph; null: `logits` where there are any, else the first entry of a dict, or all of a tuple."""

    channels: int | None = None
    """Channels of the images; null: as the data set says."""
    size: Any = None  # a number or a pair, which Hydra cannot tell apart
    """Height and width of the images, such as 32 or [32,48]; null: as the data set says."""
    classes: int | None = None
    """Outputs of a classifier; null: as many as the data set has classes."""
    vocabulary_size: int | None = None
    """Tokens of the vocabulary; null: as the data set says."""
    source_vocabulary_size: int | None = None
    """Tokens of the vocabulary that a translation starts from; null: as the data set says."""
    target_vocabulary_size: int | None = None
    """Tokens of the vocabulary that it ends in; null: as the data set says."""
    padding: int | None = None
    """The id of the token that pads; null: as the data set says."""
    max_length: int | None = None
    """Positions at most; null: as the data set says."""


@dataclass(frozen=True)
class UpdateConfig:
    """How weights are updated, by any optimizer, your own included."""

    lr: float | None = None
    """The learning rate that lr_schedule scales; every choice but custom sets one."""
    clip_norm: float | None = None
    """Clip gradients to this norm, of all stages under synchronous methods, of each stage otherwise; null: do not."""


@dataclass(frozen=True)
class ReplicasConfig:
    """How many processes hold each stage, however the model is cut."""

    replicas: Any = None  # a list or null
    """Processes that hold each stage and share its minibatches, such as [2,1]; null: one each: docs/replicas.md."""
    scale_lr: bool = True
    """Multiply the learning rate of a stage by its replicas over those of the first stage."""


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, and in which portions."""

    epochs: int = 10
    """Passes over the training set."""
    max_steps: int | None = None
    """Stop after this many optimizer steps; null: run all epochs."""
    batch_size: int = 64
    """Samples per minibatch, that is, per optimizer step; on the command line auto: as many as fit CUDA's memory."""
    microbatches: int = 1
    """N, the microbatches per minibatch; must divide train.batch_size."""
    recompute: bool = False
    """Recompute activations before the backward instead of storing them: docs/recomputation.md."""
    recompute_boundaries: list[int] | None = None
    """The first layer of each recomputation segment, such as [0,8]; simulated only; null: each stage by itself."""
    precision: str = "fp32"
    """fp32, bf16 or fp16: what layers compute in, by autocast; weights stay float32: docs/precision.md."""
    tf32: bool | None = None
    """On CUDA round the factors of float32 products to TF32; null: those of convolutions alone: docs/precision.md."""
    channels_last: bool = False
    """Keep the channels of pictures last in memory, in which order many convolutions are faster."""
    compile: bool = False
    """Compile each layer with torch.compile; the first step of each shape then takes longer: docs/precision.md."""
    target: Any = None  # a mapping or null, which Hydra cannot override where it is declared as such
    """Metrics that end the run once evaluation reaches them, such as {top1: 66, loss: 0.5}."""


@dataclass(frozen=True)
class EvalConfig:
    """When to evaluate, and in which portions."""

    every_epochs: int = 1
    """Epochs between evaluations; the last epoch is evaluated as well. 0: none is, not even the last."""
    batch_size: int | None = None
    """Samples per message during evaluation; null: as many as a microbatch has."""
    decode: bool = True
    """Generate texts from the whole model where the data set has references: BLEU, METEOR; docs/metrics.md."""
    decode_every_epochs: int = 1
    """Of the evaluations, only those after so many epochs generate texts; the last one always does."""
    beam_width: int = 5
    """Hypotheses that beam search follows side by side; 1: greedy search."""
    length_penalty: float = 1.0
    """The exponent by which beam search favors longer texts; 0: not at all."""
    length_penalty_form: str = "fairseq"
    """What has that exponent and divides log-probabilities: fairseq (the length) or gnmt ((5 + length) / 6)."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written; one is always written at the end."""

    at_start: bool = False
    """Also save the initial weights, as step 0."""
    every_epochs: int = 1
    """Epochs between checkpoints; 0: only the one at the end."""
    every_steps: int | None = None
    """Also save every so many steps; each of these drains the pipeline, as the end of an epoch does."""
    every_minutes: float | None = None
    """Also save whenever so many minutes have passed since the last checkpoint, which drains the pipeline."""
    keep_last: int | None = None
    """Keep only the newest so many; null: all, or the newest one where `checkpoint.keep_best` is set."""
    keep_best: int | None = None
    """Keep the best so many by `checkpoint.metric`, too, and save at every evaluation; null: none on that account."""
    metric: str = "loss"
    """The metric of the best checkpoint, also for `eval --best`: loss, or another of evaluations, such as top1."""


@dataclass(frozen=True)
class SweepConfig:
    """What a run returns to a sweeper that searches, such as Optuna's: docs/tuning.md."""

    objective: str | None = None
    """The metric that the sweeper optimizes, such as top1; null: that of `checkpoint.metric`."""
    best: bool = False
    """true: a run returns the best value of all evaluations; false: that of the last one."""


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
    """Seconds after which a worker that neither makes progress nor waits for a neighbor is stopped and named."""
    start_timeout: float = 1800.0
    """Seconds that a worker may take to start, its data set and model included; then it is stopped and named."""
    stop_timeout: float = 20.0
    """Seconds that an interrupted run may take to drain the pipeline and save a checkpoint; 0: it ends at once."""
    max_restarts: int = 0
    """Times that a run goes on by itself, from its newest whole checkpoint, after a worker died or hung."""


@dataclass(frozen=True)
class LogConfig:
    """What is written during training."""

    every_steps: int = 1
    """Steps between records in metrics.jsonl and TensorBoard."""
    progress_seconds: float = 60.0
    """Seconds between lines of progress where there is no terminal for a bar; 0: only a line per epoch."""


@dataclass(frozen=True)
class PlannerConfig:
    """How `pipetrain plan` and `partition=auto` search for a pipeline: docs/planner.md."""

    cost_model: str = "ring_allreduce"
    """What replicas cost: ring_allreduce, as machines do it, or pipedream_paper, PipeDream's recurrence as printed."""
    overlap: bool = True
    """Whether weights are synchronized while a stage computes; false: after it. Of ring_allreduce alone."""
    straight: bool = False
    """Only straight pipelines, without replicated stages."""
    objective: str = "time"
    """What the largest stage is to have least of: time or memory."""
    repeats: int = 10
    """Timed passes of a profile through the model, after two that warm up; their medians count."""
    bandwidth: bool = True
    """Whether a profile also measures messages between two workers, their bandwidth and work; false: not known."""
    cache: str = "use"
    """use stored measurements of the same layers on the same device, renew them, or ignore them and measure."""


@dataclass(frozen=True)
class TopologyConfig:
    """The devices that are planned for."""

    devices: int | None = None
    """How many there are; null: as many as topology.workers says, or 2."""
    workers: list[int] | None = None
    """Members of each level, innermost first, such as [8,2] for two machines of 8 devices; null: one level."""
    gigabytes_per_s: list[float] | None = None
    """Bandwidth between two members of each level, in 10^9 bytes/s, such as [30,3.125]; null: as the profile says."""
    memory_gigabytes: Any = None  # a number or a list, which Hydra cannot tell apart
    """Memory of a device in 10^9 bytes, such as 16, or of each, such as [16,16,8]; null: not limited."""
    speeds: list[float] | None = None
    """Speed of each device as a multiple of the profiled one, such as [1,1,0.5]; null: all 1."""
    cores: int | None = None
    """Cores that the workers of a machine, the innermost level, share; null: those of a profiled CPU (planner.md)."""
    latency_s: float = 0.0
    """Seconds that every message takes beside its transmission; `pipetrain predict` alone counts them."""
    update_gigabytes_per_s: float | None = None
    """How fast updates and predictions go through weights; null: 25 on a CPU, elsewhere they take no time."""


def _loader() -> dict[str, Any]:
    return asdict(LoaderConfig())


def _model() -> dict[str, Any]:
    return asdict(ModelConfig())


def _replicas() -> dict[str, Any]:
    return asdict(ReplicasConfig())


def _update() -> dict[str, Any]:
    return asdict(UpdateConfig())


@dataclass(frozen=True)
class Config:
    """Everything of a run. The open groups, of type dict, are Hydra targets."""

    dataset: dict[str, Any] = field(default_factory=_loader)
    """The data to train on."""
    model: dict[str, Any] = field(default_factory=_model)
    """The model, a chain of layers."""
    partition: dict[str, Any] = field(default_factory=_replicas)
    """Which layers form which stage."""
    schedule: dict[str, Any] = field(default_factory=dict)
    """When each stage does what; a method brings its own default."""
    method: dict[str, Any] = field(default_factory=dict)
    """Which weights each stage reads."""
    optimizer: dict[str, Any] = field(default_factory=_update)
    """How weights are updated."""
    lr_schedule: dict[str, Any] = field(default_factory=dict)
    """How the learning rate changes during the run."""
    loss: dict[str, Any] = field(default_factory=dict)
    """What is minimized, and which metrics an evaluation reports."""
    metrics: Any = field(default_factory=dict)  # name -> target
    """Further metrics of evaluations by name, such as
    metrics.f1._target_=torchmetrics.classification.BinaryF1Score: docs/metrics.md."""
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    """One process per stage, or all stages simulated in one process."""
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    log: LogConfig = field(default_factory=LogConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    profile: str | None = None
    """A profile to plan with, of `pipetrain profile` or a graph.txt of PipeDream's; null: measure one."""
    phases: Any = None
    """Several schedules and methods in one run, one after the other: docs/phases.md; null: one throughout."""
    seed: int = 0
    """Determines initial weights, the order of the data, augmentation and dropout."""
    device: str = "auto"
    """auto (CUDA if there is a device), cpu or cuda."""
    threads: int | None = None
    """Intra-op threads per process; null: the cores divided by the processes. Decides the order of sums on the CPU."""
    deterministic: bool = False
    """Only operations that give the same bits in each run, which may be slower ones: docs/precision.md."""
    resume: str | None = None
    """A run directory or checkpoint to continue; auto: what is unfinished here or beside: docs/resuming.md."""
    replay_drains: str | None = None
    """A run directory; drain where signals, the clock and resumptions drained that run: docs/resuming.md."""
    trace: bool = False
    """Write trace.json, a Chrome trace of every operation and message: docs/timelines.md."""
    debug: bool = False
    """Show tracebacks of errors."""


OPEN_SECTIONS = {
    "dataset": LoaderConfig,
    "model": ModelConfig,
    "partition": ReplicasConfig,
    "optimizer": UpdateConfig,
}
"""What the open groups take beside the options of their targets."""


@functools.cache
def schema() -> DictConfig:
    """The schema as a configuration of defaults, for `OmegaConf.merge`, which leaves its arguments as they are."""
    config: DictConfig = OmegaConf.structured(Config)
    for node in (config, *config.values()):
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, None)  # OmegaConf takes `frozen` for a ban on overrides
    OmegaConf.set_struct(config.metrics, value=False)  # whoever sets a metric names it
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
