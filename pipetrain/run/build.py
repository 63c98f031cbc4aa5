"""Turns settings into the objects of a run: data, layer chain, rules, optimizers."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipetrain.arithmetic import ComputeOptions
from pipetrain.config.choices import names_of_family
from pipetrain.config.instantiate import Target
from pipetrain.config.phases import PhaseSettings
from pipetrain.config.schema import TrainConfig
from pipetrain.config.settings import DatasetSettings, OptimizerSettings, ReplicaSettings, Settings
from pipetrain.data.fetch import Fetch
from pipetrain.data.loader import Loader
from pipetrain.data.ranges import LabelRange, TokenRange
from pipetrain.data.samples import NamedData, naming_errors
from pipetrain.errors import ConfigError
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.losses import Loss, Metric, Metrics
from pipetrain.methods import Method
from pipetrain.models.chain import Inputs, LayerChain, chain_of, is_cut_along_graph
from pipetrain.models.ties import untie
from pipetrain.optim.lr_schedules import LearningRateSchedule
from pipetrain.optim.stage_optimizer import can_be_fused
from pipetrain.optim.torch_schedulers import TorchScheduler
from pipetrain.planner.partition.automatic import AutoPartition
from pipetrain.planner.partition.finegrained import FineGrained, stages_of_layers, weight_units
from pipetrain.planner.partition.rules import Even, PartitionRule
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.program.validation import check_custom_schedule
from pipetrain.run.data_shape import from_data
from pipetrain.run.timetable import Timetable
from pipetrain.schedules import ListSchedule, Replicas, Schedule
from pipetrain.schedules.round_robin import RoundRobin

_ONE_EACH = ReplicaSettings()
_FIRST = 5
"""Samples that a model is tried with before it is cut along its graph."""


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

    def pin(self) -> None:
        """Has minibatches read into page-locked memory."""
        self.train.pinned = self.evaluation.pinned = True

    def expect(self, labels: LabelRange | None, tokens: TokenRange | None) -> None:
        """Has each label and token that is read held against those that the model can learn and knows."""
        self.train.labels = labels
        self.evaluation.labels = labels and labels.of("eval")
        self.train.tokens = tokens
        self.evaluation.tokens = tokens and tokens.of("eval")


def build_dataset(settings: DatasetSettings) -> Any:
    """The data set.

    Raises:
        ConfigError: the target does not return one.
    """
    target = settings.target
    dataset = target.build()
    for part in ("train", "eval"):
        if not hasattr(dataset, part):
            raise ConfigError(
                f"dataset._target_={target.path}: returned a {type(dataset).__name__} without `{part}`; "
                "a data set has map-style `train` and `eval`"
            )
        with naming_errors(f"len() of `{part}`"):
            empty = hasattr(getattr(dataset, part), "__len__") and not len(getattr(dataset, part))
        if empty:
            raise ConfigError(f"dataset._target_={target.path}: its `{part}` is empty")
    return dataset if settings.target_key is None else NamedData(dataset, settings.target_key, settings.input_key)


def build_data(settings: Settings) -> Data:
    """The data set and its loaders.

    Raises:
        ConfigError: the target does not return a data set, or the loader refuses a setting.
    """
    dataset, train = build_dataset(settings.dataset), settings.train
    loader = Loader(
        dataset.train,
        batch_size=train.batch_size,
        microbatches=train.microbatches,
        shuffle=settings.dataset.shuffle,
        **_of_any_loader(settings),
    )
    data = Data(dataset, loader, evaluation_loader(settings, dataset))
    if train.batch_size > data.train.samples_per_epoch and not hasattr(dataset.train, "batches"):
        limited = "" if settings.dataset.limit is None else f", with dataset.limit={settings.dataset.limit}"
        raise ConfigError(
            f"train.batch_size={train.batch_size}: more than the {data.train.samples_per_epoch} samples of an "
            f"epoch{limited}"
        )
    return data


def evaluation_loader(settings: Settings, dataset: Any) -> Loader:
    """The loader of the evaluation set.

    Raises:
        ConfigError: it refuses a setting.
    """
    batch_size = evaluation_batch_size(settings)
    return Loader(dataset.eval, batch_size=batch_size, shuffle=False, drop_short=False, **_of_any_loader(settings))


def evaluation_batch_size(settings: Settings) -> int:
    """Samples of the evaluation set that are computed together."""
    return settings.eval.batch_size or settings.train.batch_size // settings.train.microbatches


def _of_any_loader(settings: Settings) -> dict[str, Any]:
    data = settings.dataset
    return {"seed": settings.seed, "limit": data.limit, "workers": data.workers, "prefetch": data.prefetch}


def build_chain(
    model: Target, dataset: Any, seed: int, *, separate: bool = False, output: str | None = None
) -> LayerChain:
    """The model's layer chain, its initial weights drawn from the run's seed.

    Args:
        model: what returns it.
        dataset: what fills in its open options.
        seed: of the run.
        separate: whether each layer gets a weight of its own in place of one that it shares.
        output: the entry of what the forward returns that goes to the loss; None: see `chain_of`.

    Raises:
        ConfigError: the target does not return a model, or refuses an option.
    """
    extra = from_data(model, dataset)
    torch.manual_seed(seed)
    module = model.build(**extra)
    if not isinstance(module, nn.Module | LayerChain):
        raise model.wrong_type_error(module, "an nn.Module or a pipetrain.LayerChain")
    chain = chain_of(module, first_inputs(dataset) if is_cut_along_graph(module) else (), output)
    if separate:
        untie(chain)
    return chain


def first_inputs(dataset: Any) -> Inputs:
    """The inputs of the first samples; by name where the data set gives dicts.

    Raises:
        ConfigError: there are dicts inside of dicts, or tuples, for which nobody knows what each tensor is called.
    """
    fetch = Fetch(dataset.train, seed=0, inputs=True, targets=False)
    tensors, _ = fetch(0, range(min(len(dataset.train), _FIRST)))
    assert tensors is not None
    names = fetch.names()
    if names and len(names) != len(tensors):
        raise ConfigError(
            f"dataset: the inputs {', '.join(names)} are {len(tensors)} tensors; a model that is cut along its graph "
            "takes one tensor for each name"
        )
    return dict(zip(names, tensors, strict=True)) if names else tensors


def build_arithmetic(train: TrainConfig) -> ComputeOptions:
    """How the layers compute."""
    return ComputeOptions(train.precision, train.channels_last, train.compile)


def build_rule(settings: Settings) -> PartitionRule | AutoPartition | FineGrained:
    """The rule that cuts the model into stages.

    Raises:
        ConfigError: the target refuses an option, or returns something else.
    """
    rule: PartitionRule | AutoPartition | FineGrained = settings.partition.build()
    if not isinstance(rule, AutoPartition | FineGrained) and not callable(getattr(rule, "cuts", None)):
        raise settings.partition.wrong_type_error(rule, "a partition rule")
    counts = settings.replicas.counts or ()
    # another count of stages is refused with the schedule, by name
    return replace(rule, replicas=counts) if isinstance(rule, Even) and len(counts) == rule.stages else rule


def build_loss(settings: Settings, dataset: Any) -> Loss:
    """The loss of the last stage; an `ignore_index` of null is the data set's `padding`, if it has any.

    Raises:
        ConfigError: the target refuses an option, or returns something else.
    """
    target, padding = settings.loss, getattr(dataset, "padding", None)
    _check_makes_loss(target)
    asked = "ignore_index" in target.options and target.options["ignore_index"] is None and padding is not None
    loss: Loss = target.build(**_tensors(target), **({"ignore_index": padding} if asked else {}))
    if not callable(loss) or isinstance(loss, type):
        raise target.wrong_type_error(loss, "a function of outputs and targets")
    return loss


def _check_makes_loss(target: Target) -> None:
    """Refuses a function that is a loss in place of one that returns one."""
    missing = [name for name in target.parameters(required=True) if name not in target.options]
    if missing:
        raise ConfigError(
            f"loss._target_={target.path}: is called once, to make the loss, and needs {', '.join(missing)}; name a "
            f"class such as torch.nn.MSELoss or a function that returns the loss, or set +loss.{missing[0]}"
        )


def _tensors(target: Target) -> dict[str, Tensor]:
    """The options that are lists, such as class weights, for parameters that take tensors."""
    lists = {name: value for name, value in target.options.items() if isinstance(value, list)}
    found = {}
    for name, value in lists.items():
        kinds = target.annotation(name)
        if Tensor in (kinds, *get_args(kinds)):
            try:
                found[name] = torch.tensor(value, dtype=torch.float32)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"loss.{name}={value}: a list of numbers is needed") from error
    return found


def build_metrics(settings: Settings) -> Metrics:
    """The metrics of evaluations beside those of the loss.

    Raises:
        ConfigError: a target refuses an option, returns something else, or nobody says which of two values is better.
    """
    fresh: dict[str, Metric] = {}
    lower: list[str] = []
    for name, asked in settings.metrics.items():
        metric = asked.target.build()
        if isinstance(metric, type) or not all(callable(getattr(metric, each, None)) for each in ("update", "compute")):
            raise asked.target.wrong_type_error(metric, "an object with `update` and `compute`")
        higher = asked.rises(metric)
        if higher is None:
            raise ConfigError(
                f"metrics.{name}: {asked.target.path} does not say whether more is better; set "
                f"metrics.{name}.higher_is_better=true or false"
            )
        fresh[name] = metric
        lower += [] if higher else [name]
    return Metrics(fresh, tuple(lower))


def build_phases(
    settings: Settings,
    timetable: Timetable,
    num_stages: int,
    segments: RecomputeSegments | None,
    replicas: ReplicaSettings = _ONE_EACH,
) -> list[Phase]:
    """The phases of a run, one after the other.

    Raises:
        ConfigError: a schedule or method takes other settings, or they do not go together.
    """
    starts = [0, *timetable.phase_ends[:-1]]
    phases = []
    for phase, start, end in zip(settings.phases, starts, timetable.phase_ends, strict=True):
        with phase.naming_errors():
            rules = build_rules(phase, num_stages, settings.train.microbatches, segments, replicas)
        phases.append(Phase(rules, start, end))
    return phases


def build_schedules(settings: Settings) -> list[Schedule]:
    """The schedule of each phase.

    Raises:
        ConfigError: a target refuses an option, or returns something else.
    """
    schedules = []
    for phase in settings.phases:
        with phase.naming_errors():
            schedules.append(_build_schedule(phase))
    return schedules


def _build_schedule(phase: PhaseSettings) -> Schedule:
    schedule = phase.schedule.build()
    if not isinstance(schedule, Schedule):
        raise phase.schedule.wrong_type_error(schedule, "a pipetrain.Schedule")
    return schedule


def build_rules(
    phase: PhaseSettings,
    num_stages: int,
    num_microbatches: int,
    segments: RecomputeSegments | None,
    replicas: ReplicaSettings = _ONE_EACH,
) -> PipelineRules:
    """The schedule and method of a phase.

    Raises:
        ConfigError: one takes other settings, or they do not go together.
    """
    schedule, method = _build_schedule(phase), phase.method.build()
    if not isinstance(method, Method):
        raise phase.method.wrong_type_error(method, "a pipetrain.Method")
    _check_pair(method, schedule, phase.choices)
    try:
        check_custom_schedule(schedule, num_stages, num_microbatches)
    except ConfigError as error:
        raise ConfigError(f"schedule._target_={phase.schedule.path}: {error}") from error
    if method.independent_replicas == 1:
        schedule = replicated(schedule, num_stages, replicas)
    return PipelineRules(schedule, method, num_stages, num_microbatches, segments)


def replicated(schedule: Schedule, num_stages: int, replicas: ReplicaSettings) -> Schedule:
    """The schedule on so many replicas of each stage; itself where each has one.

    Raises:
        ConfigError: there are not as many numbers as stages, or the schedule has no lists.
    """
    counts = replicas.counts
    if counts is None:
        return schedule
    if len(counts) != num_stages:
        raise ConfigError(f"partition.replicas={list(counts)}: a number for each of {num_stages} stages is needed")
    if max(counts) == 1:
        return schedule
    if not isinstance(schedule, ListSchedule):
        raise ConfigError(
            f"partition.replicas={list(counts)}: schedule={schedule.name} is run by torch.distributed.pipelining, "
            "which knows no replicas; schedule=gpipe and 1f1b_flush do"
        )
    return RoundRobin(schedule, Replicas(counts), replicas.scale_lr)


def _check_pair(method: Method, schedule: Schedule, names: Mapping[str, str]) -> None:
    """A method goes with the schedules of its family; says which those are."""
    if method.family == schedule.family:
        return
    raise ConfigError(
        f"method={names['method']} does not work with schedule={names['schedule']}; use "
        f"schedule={_either(names_of_family('schedule', method.family))}, or "
        f"method={_either(names_of_family('method', schedule.family))}"
    )


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def first_layers(chain: LayerChain, bounds: Sequence[tuple[int, int]], *, finegrained: bool) -> dict[int, int]:
    """First layer of a stage -> the stage; `bounds` as those of a Job."""
    if finegrained:
        return stages_of_layers(weight_units(chain), bounds)
    return {first: r for r, (first, _) in enumerate(bounds)}


def build_recompute_segments(
    train: TrainConfig, num_stages: int, stage_of: Mapping[int, int]
) -> RecomputeSegments | None:
    """Which stages recompute together; None where none does.

    Args:
        train: the settings of recomputation.
        num_stages: D.
        stage_of: first layer of a stage -> the stage.

    Raises:
        ConfigError: a boundary is not the first layer of a stage.
    """
    layers = train.recompute_boundaries
    if layers is None:
        return RecomputeSegments.of_single_stages(num_stages) if train.recompute else None
    if wrong := [layer for layer in layers if layer not in stage_of]:
        raise ConfigError(
            f"train.recompute_boundaries={layers}: layer {wrong[0]} is not the first layer of a stage; stages begin at "
            f"layers {', '.join(map(str, stage_of))}"
        )
    return RecomputeSegments(tuple(sorted({0, *(stage_of[layer] for layer in layers)})), num_stages)


def build_rate(settings: Settings, timetable: Timetable) -> Callable[[int], float]:
    """The learning rate of each update.

    Raises:
        ConfigError: the schedule refuses an option, or there is no rate for it to scale.
    """
    base = settings.optimizer.lr
    if base is None:
        raise ConfigError("optimizer.lr is not set; learning-rate schedules scale it: optimizer.lr=0.01")
    schedule = _lr_schedule(settings, base)
    schedule.check(timetable.steps_per_epoch, timetable.total_steps)
    return lambda step: base * schedule.factor(step, timetable.steps_per_epoch, timetable.total_steps)


def _lr_schedule(settings: Settings, lr: float) -> LearningRateSchedule:
    target = settings.lr_schedule
    if scheduler := settings.torch_scheduler:
        beside = {name: target.options[name] for name in ("unit", "warmup") if name in target.options}
        return TorchScheduler(make=scheduler.build, lr=lr, name=f"{target.section}._target_={target.path}", **beside)
    schedule = target.build()
    if not isinstance(schedule, LearningRateSchedule):
        raise target.wrong_type_error(
            schedule, "a pipetrain.LearningRateSchedule or a scheduler of torch.optim.lr_scheduler"
        )
    return schedule


def build_torch_optimizer(settings: OptimizerSettings, parameters: list[nn.Parameter]) -> Optimizer:
    """torch's optimizer of some parameters, in its fused form where torch has one.

    Raises:
        ConfigError: the target refuses an option, or is something else.
    """
    optimizer = settings.target.build(parameters)
    if not isinstance(optimizer, Optimizer):
        raise settings.target.wrong_type_error(optimizer, "a torch.optim.Optimizer")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ConfigError(
            f"optimizer._target_={settings.target.path}: its steps evaluate the model again, which a pipeline cannot "
            "do; those of torch.optim.SGD or Adam do not"
        )
    return settings.target.build(parameters, fused=True) if can_be_fused(optimizer, parameters) else optimizer
