"""The structured configuration: the settings that `pipetrain run` accepts, their types and defaults."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

TARGET = "_target_"
"""The key of an open section that names a class or function."""


@dataclass(frozen=True)
class LoaderConfig:
    """Options of every data set, custom ones included: how samples are loaded."""

    shuffle: bool = True
    """Reshuffle the training set every epoch; false: keep its order."""
    limit: int | None = None
    """Use at most this many training samples, and this many evaluation samples; null: all."""
    workers: int = 0
    """Processes that load samples for a stage; 0: the stage loads them itself."""
    prefetch: int | None = None
    """Minibatches that each worker prefetches; null: 2."""
    input_key: Any = None  # a name or a list
    """For samples that are dicts: the key of the input, or a list of keys; null: all but dataset.target_key."""
    target_key: Any = None  # a name or a list
    """For samples that are dicts: the key of the target, such as labels; null: samples are (input, target) pairs."""
    pin_memory: bool = False
    """Pin minibatches when they are loaded, with dataset.workers in a thread; false, or over NCCL: before the copy to
    CUDA."""


@dataclass(frozen=True)
class ModelConfig:
    """Options of every model, custom ones included; those after `output` only if the constructor takes them."""

    weights: str | None = None
    """File of weights to start from, of safetensors or torch.save, or a run directory; null: drawn from the seed:
    docs/checkpoints.md."""
    strict: bool = True
    """Require all names and shapes in model.weights to match the model's; false: load the tensors that match."""
    untie: bool = False
    """Give layers that share a weight a copy each: asynchronous stages cannot share weights."""
    output: Any = None  # a name or a number
    """The entry of the forward's result that goes to the loss, such as `logits` or 0, for models that are split along
    their graph; null: `logits` if there are any, else the first entry of a dict, or all of a tuple."""

    channels: int | None = None
    """Channels of the images; null: taken from the data set."""
    size: Any = None  # a number or a pair, which Hydra cannot tell apart
    """Height and width of the images, such as 32 or [32,48]; null: taken from the data set."""
    classes: int | None = None
    """Outputs of a classifier; null: the number of classes of the data set."""
    vocabulary_size: int | None = None
    """Size of the vocabulary; null: taken from the data set."""
    source_vocabulary_size: int | None = None
    """Size of a translation's source vocabulary; null: taken from the data set."""
    target_vocabulary_size: int | None = None
    """Size of a translation's target vocabulary; null: taken from the data set."""
    padding: int | None = None
    """Id of the padding token; null: taken from the data set."""
    max_length: int | None = None
    """Maximum number of positions; null: taken from the data set."""


@dataclass(frozen=True)
class UpdateConfig:
    """Options of every optimizer, custom ones included."""

    lr: float | None = None
    """Learning rate, which lr_schedule scales; every choice except custom sets one."""
    clip_norm: float | None = None
    """Largest norm of gradients: over synchronous stages with equal replicas together, else of each; null: no limit."""
    error_feedback: float | None = None
    """Strength of the correction of each update by its difference from the last one: docs/optimizers.md; null: none."""
    lr_by_delay: int | None = None
    """Divide the learning rate of each stage by its delay, and return to the full rate over this many steps of the
    phase, as PipeMare's T1 does: docs/optimizers.md; null: do not."""
    momentum_by_stage: Any = None  # a pair or null
    """Momentum of each stage, or betas[0], between two numbers, such as [0.9,0.99]: docs/optimizers.md; null: the same
    in all stages."""
    groups: Any = None  # a list or null
    """Parameters with other options, such as [{max_dims: 1, weight_decay: 0}]: docs/optimizers.md; null: none."""


@dataclass(frozen=True)
class ReplicasConfig:
    """Options of every partition: the replicas of each stage."""

    replicas: Any = None  # a list or null
    """Replicas of each stage, which share its minibatches, such as [2,1]; null: one each: docs/replicas.md."""
    scale_lr: bool = True
    """Scale a stage's learning rate by its number of replicas relative to the first stage's."""


@dataclass(frozen=True)
class AveragingConfig:
    """What the replicas of a stage average, gradients or weights: docs/replicas.md."""

    average: str = "gradients"
    """gradients, in every update; or weights: each replica trains alone, and a share of its weights is averaged."""
    share: float = 0.05
    """Share of the weights that is averaged after each update, each time another one."""
    delay: int = 10
    """Updates after which the average comes."""
    correction: str = "ema"
    """What is added to the average for the changes that a replica has made since: ema, their moving average; update,
    the changes themselves; or none."""
    strength: float = 1.0
    """Factor on the correction."""
    decay: float = 0.5
    """Decay of the moving average."""
    final_decay: float = 0.99
    """The decay at the end of the run."""
    rise_after: int | None = 1000
    """Updates after which the decay begins to rise to averaging.final_decay; null: it stays."""


@dataclass(frozen=True)
class MessagesConfig:
    """Formats of the messages between stages: docs/messages.md."""

    activations: Any = field(default_factory=lambda: {"name": "plain"})  # a name, or a mapping of it and options
    """Format of activations: a name of `pipetrain list messages`, with options as messages.activations.bits=4; or
    custom, and messages.activations._target_=mylib.Format."""
    gradients: Any = field(default_factory=lambda: {"name": "plain"})  # likewise
    """Format of the gradients that go back, likewise."""
    evaluation: bool = False
    """Send activations in this format in evaluations, too; false: plain."""
    error_every: int | None = 100
    """Steps between measurements of the error of what arrives; null: never."""


@dataclass(frozen=True)
class TrainConfig:
    """Length of the training, and how minibatches are processed."""

    epochs: int = 10
    """Passes over the training set."""
    max_steps: int | None = None
    """Stop after this many optimizer steps; null: run all epochs."""
    batch_size: int = 64
    """Samples per minibatch, that is, per optimizer step."""
    microbatches: int = 1
    """N, the number of microbatches per minibatch; must divide train.batch_size."""
    recompute: bool = False
    """Recompute activations before the backward instead of storing them: docs/recomputation.md."""
    recompute_boundaries: list[int] | None = None
    """First layer of each recomputation segment, such as [0,8]; simulated only; null: one segment per stage."""
    precision: str = "fp32"
    """Precision of computations: fp32, bf16 or fp16, by autocast; weights stay float32: docs/precision.md."""
    tf32: bool | None = None
    """Use TF32 for float32 products on CUDA; null: for convolutions only: docs/precision.md."""
    channels_last: bool = False
    """Use the channels-last memory format for images, in which many convolutions are faster."""
    compile: bool = False
    """Compile each layer with torch.compile; the first step of each shape takes longer: docs/precision.md."""
    ema: float | None = None
    """Evaluate and export an exponential moving average of the weights with this decay, such as 0.99; null: the weights
    themselves: docs/averaging.md."""
    target: Any = None  # a mapping or null, which Hydra cannot override where it is declared as such
    """Stop the run once an evaluation reaches these metrics, such as {top1: 66, loss: 0.5}."""
    patience: int | None = None
    """Stop the run after this many evaluations in a row without a better `checkpoint.metric`; null: never."""
    min_improvement: float = 0.0
    """With train.patience: only a change of the metric by more than this is an improvement."""


@dataclass(frozen=True)
class EvalConfig:
    """When and how to evaluate."""

    every_epochs: int = 1
    """Epochs between evaluations; the last epoch is always evaluated. 0: no evaluation at all."""
    batch_size: int | None = None
    """Samples per message during evaluation; null: the size of a microbatch."""
    decode: bool = True
    """Generate texts if the data set has references, for BLEU and METEOR: docs/metrics.md."""
    decode_every_epochs: int = 1
    """Generate texts at those evaluations that come after a multiple of this many epochs, and at the last one."""
    beam_width: int = 5
    """Beam width of beam search; 1: greedy search."""
    length_penalty: float = 1.0
    """Exponent of the length penalty of beam search; higher favors longer texts; 0: no penalty."""
    length_penalty_form: str = "fairseq"
    """Base of the length penalty, which divides log-probabilities: fairseq (length) or gnmt ((5 + length) / 6)."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save checkpoints; one is always saved at the end."""

    at_start: bool = False
    """Also save the initial weights, as step 0."""
    every_epochs: int = 1
    """Epochs between checkpoints; 0: only the one at the end."""
    every_steps: int | None = None
    """Also save every this many steps; each of these checkpoints drains the pipeline, as the end of an epoch does."""
    every_minutes: float | None = None
    """Also save whenever this many minutes have passed since the last checkpoint, which drains the pipeline."""
    keep_last: int | None = None
    """Keep only this many of the newest checkpoints; null: all, or the newest one if `checkpoint.keep_best` is set."""
    keep_best: int | None = None
    """Also keep this many of the best by `checkpoint.metric`, and save at every evaluation; null: none."""
    metric: str = "loss"
    """Metric of the best checkpoint, also for `eval --best`: loss, or another evaluation metric, such as top1."""


@dataclass(frozen=True)
class SweepConfig:
    """The objective of sweepers that search, such as Optuna: docs/compare.md."""

    objective: str | None = None
    """Metric to optimize, such as top1; null: `checkpoint.metric`."""
    best: bool = False
    """true: optimize the best value of all evaluations; false: the last one."""


@dataclass(frozen=True)
class ExecutorConfig:
    """Where the stages run."""

    name: str = "distributed"

    @property
    def simulated(self) -> bool:
        """True if all stages are in one process."""
        return self.name == "simulated"


@dataclass(frozen=True)
class LaunchConfig:
    """The worker processes."""

    hang_timeout: float = 600.0
    """Seconds after which a worker that neither progresses nor waits for a neighbor is killed; none if simulated."""
    start_timeout: float = 1800.0
    """Seconds a worker may take to start, including its data set and model, before it is killed and named."""
    stop_timeout: float = 20.0
    """Seconds an interrupted run may take to drain the pipeline and save a checkpoint; 0: it ends immediately."""
    max_restarts: int = 0
    """Maximum number of automatic restarts, from the newest intact checkpoint, after a worker died or hung."""


@dataclass(frozen=True)
class LogConfig:
    """Logging during training."""

    every_steps: int = 1
    """Steps between records in metrics.jsonl, and so in every tracker."""
    progress_seconds: float = 60.0
    """Seconds between progress lines if there is no terminal for a bar; 0: only a line per epoch."""
    to: Any = field(default_factory=lambda: ["tensorboard"])  # a list
    """Trackers, in addition to metrics.jsonl: any of tensorboard, mlflow and wandb: docs/trackers.md."""
    callback_errors: str = "warn"
    """When a tracker or callback raises an exception: warn and no longer call it, or stop the run."""
    staleness_every_steps: int | None = None
    """Steps between measurements of the distances between weights: docs/staleness.md; null: none."""
    staleness_gradient: bool = False
    """Also compare each gradient so measured with the one at the newest weights; needs executor=simulated."""


@dataclass(frozen=True)
class PlannerConfig:
    """How `pipetrain plan` and `partition=auto` search for a pipeline: docs/planner.md."""

    cost_model: str = "ring_allreduce"
    """Cost of replicas: ring_allreduce, as on real machines, or pipedream_paper, PipeDream's recurrence as printed."""
    overlap: bool = True
    """Synchronize weights while a stage computes; false: afterwards. Only with ring_allreduce."""
    straight: bool = False
    """Consider only straight pipelines, without replicated stages."""
    objective: str = "time"
    """Objective for the worst stage: time or memory."""
    repeats: int = 10
    """Timed passes of a profile, after two warm-up passes; their median counts."""
    bandwidth: bool = True
    """Also measure the messages between two workers: bandwidth and CPU time; false: unknown."""


@dataclass(frozen=True)
class TopologyConfig:
    """The devices to plan for."""

    devices: int | None = None
    """Number of devices; null: the product of topology.workers, or the number that is needed; 2 to find a plan."""
    workers: list[int] | None = None
    """Members of each level, innermost first, such as [8,2] for two machines of 8 devices; null: a single level."""
    gigabytes_per_s: list[float] | None = None
    """Bandwidth between two members of each level, in 10^9 bytes/s, such as [30,3.125]; null: from the profile."""
    memory_gigabytes: Any = None  # a number or a list, which Hydra cannot tell apart
    """Memory of each device in 10^9 bytes, such as 16, or a list, such as [16,16,8]; null: unlimited."""
    speeds: list[float] | None = None
    """Speed of each device as a multiple of the profiled one, such as [1,1,0.5]; null: all 1."""
    cores: int | None = None
    """Cores shared by the workers of a machine (the innermost level); null: those of a profiled CPU (planner.md)."""
    latency_s: float = 0.0
    """Latency of each message in seconds; used by predictions, not by the search of the planner."""
    update_gigabytes_per_s: float | None = None
    """Memory throughput of weight updates and predictions, in 10^9 bytes/s; null: from the profile."""


@dataclass(frozen=True)
class Config:
    """All settings of a run. The open groups, of type dict, are Hydra targets."""

    dataset: dict[str, Any] = field(default_factory=lambda: asdict(LoaderConfig()))
    """The data to train on."""
    model: dict[str, Any] = field(default_factory=lambda: asdict(ModelConfig()))
    """The model, a chain of layers."""
    partition: dict[str, Any] = field(default_factory=lambda: asdict(ReplicasConfig()))
    """How layers are assigned to stages."""
    schedule: dict[str, Any] = field(default_factory=dict)
    """The order of operations on each stage; each method has a default."""
    method: dict[str, Any] = field(default_factory=dict)
    """Which weight versions each stage reads."""
    optimizer: dict[str, Any] = field(default_factory=lambda: asdict(UpdateConfig()))
    """How weights are updated."""
    lr_schedule: dict[str, Any] = field(default_factory=dict)
    """How the learning rate changes during the run."""
    loss: dict[str, Any] = field(default_factory=dict)
    """The loss, and the metrics that an evaluation reports."""
    metrics: Any = field(default_factory=dict)  # name -> target
    """Additional evaluation metrics by name, such as
    metrics.f1._target_=torchmetrics.classification.BinaryF1Score: docs/metrics.md."""
    callbacks: Any = field(default_factory=list)  # targets
    """Callbacks of your own, such as [{_target_: mylib.Mine, option: 3}]: docs/trackers.md."""
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    """One process per stage, or all stages simulated in one process."""
    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    messages: MessagesConfig = field(default_factory=MessagesConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    log: LogConfig = field(default_factory=LogConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    profile: str | None = None
    """Profile to plan with, from `pipetrain profile` or PipeDream's graph.txt; null: measure one."""
    phases: Any = None
    """Schedules and methods that follow each other in one run: docs/phases.md; null: a single one."""
    seed: int = 0
    """Seed of initial weights, data order, augmentation and dropout."""
    device: str = "auto"
    """auto (CUDA if there is a device), cpu or cuda."""
    threads: int | None = None
    """Intra-op threads per process; null: cores divided by processes. Affects the summation order on the CPU."""
    deterministic: bool = False
    """Use only deterministic operations, which may be slower: docs/precision.md."""
    resume: str | None = None
    """Run directory or checkpoint to resume; auto: an unfinished run here or next to it: docs/checkpoints.md."""
    trace: bool = False
    """Write trace.json, a Chrome trace of every operation and message: docs/records.md."""
    debug: bool = False
    """Show the tracebacks of errors."""


OPEN_SECTIONS = {
    "dataset": LoaderConfig,
    "model": ModelConfig,
    "partition": ReplicasConfig,
    "optimizer": UpdateConfig,
}
"""Options of the open groups, in addition to those of their targets."""


@functools.cache
def schema() -> DictConfig:
    """The schema as a configuration of defaults, for `OmegaConf.merge`, which leaves its arguments as they are."""
    config: DictConfig = OmegaConf.structured(Config)
    for node in (config, *config.values()):
        if isinstance(node, DictConfig):
            OmegaConf.set_readonly(node, None)  # OmegaConf takes `frozen` for a ban on overrides
    # users name the metrics they add, and formats have options of their own
    for open_ended in (config.metrics, config.messages.activations, config.messages.gradients):
        OmegaConf.set_struct(open_ended, value=False)
    return config


def register_schema() -> None:
    """Makes the schema known to Hydra as `schema`, the first entry of the defaults list."""
    ConfigStore.instance().store(name="schema", node=schema())


def leaves(content: Any, name: str = "", *, into_lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Name -> value of every setting in a configuration, or in its section `name`.

    With `into_lists`, entries of lists are settings, too, under names such as `phases[0].steps`.
    """
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key), into_lists=into_lists)
    elif into_lists and isinstance(content, list):
        for index, value in enumerate(content):
            yield from leaves(value, f"{name}[{index}]", into_lists=into_lists)
    else:
        yield name, content


@functools.cache
def config_dir() -> Path:
    """The folder of YAML files: inside an installed package, next to it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"
