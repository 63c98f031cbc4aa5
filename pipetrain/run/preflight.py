"""Everything that can be wrong with a run, found before a process is started or a file overwritten."""

import os
from dataclasses import dataclass

import torch
from torch import nn

from pipetrain.config.settings import Settings
from pipetrain.data.labels import LabelRange
from pipetrain.errors import ConfigError
from pipetrain.executors.phase import Phase, PipelineRules
from pipetrain.executors.torch_pipelining.limits import check_unlisted, common_placement, notes_of
from pipetrain.libraries import lazy_compiler
from pipetrain.losses import Loss
from pipetrain.models.chain import LayerChain
from pipetrain.models.ties import ties_between
from pipetrain.planner.finegrained import FineGrained, check_tied_units
from pipetrain.planner.plan import Plan, make_plan
from pipetrain.program.planned_operations import rebinds_weights
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.run import tensor_file
from pipetrain.run.build import (
    Data,
    build_arithmetic,
    build_chain,
    build_data,
    build_loss,
    build_phases,
    build_rate,
    build_recompute_segments,
    build_rule,
    build_schedules,
    build_torch_optimizer,
    first_layers,
)
from pipetrain.run.carried_check import check_carried
from pipetrain.run.compiler import check_compiler
from pipetrain.run.cores import usable_cores
from pipetrain.run.data_shape import derived_from_data
from pipetrain.run.decoder import decoded_metrics, problem_of
from pipetrain.run.job import Job
from pipetrain.run.label_check import check_labels, label_range
from pipetrain.run.loss_check import check_loss
from pipetrain.run.model_check import weight_derived_layers
from pipetrain.run.provenance import provenance
from pipetrain.run.start import start_of
from pipetrain.run.timetable import Timetable, timetable_of
from pipetrain.run.trial import Trial, trial_of
from pipetrain.run.weight_passes import weight_passes
from pipetrain.schedules import ListSchedule, Placement
from pipetrain.tracking.run_directory import RunDirectory

_THREADS_PER_CORE = 16
"""More only make a run slower. Some must do: the bits depend on the threads, of a larger machine too."""


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start.

    Attributes:
        job: for the processes.
        plan: the partition.
        devices: where each stage will compute.
        start_step: where a resumed run goes on, else 0.
        notes: what the user should know.
    """

    job: Job
    plan: Plan
    devices: list[str]
    start_step: int
    notes: list[str]


@dataclass(frozen=True)
class Components:
    """The objects of a run, built once to see that they can be, and what they say about each other.

    Attributes:
        bounds: (first layer, last layer exclusive) of each stage; weight units in place of layers where `finegrained`.
        finegrained: whether stages are of single weights.
        segments: which stages recompute together; None where none does.
        placement: which process has which stages.
        loss, trial: the loss, and what the model makes of the first samples.
        labels: those that the model can learn; None where the loss is not over classes.
    """

    device: str
    data: Data
    chain: LayerChain
    plan: Plan
    bounds: list[tuple[int, int]]
    finegrained: bool
    timetable: Timetable
    segments: RecomputeSegments | None
    phases: list[Phase]
    placement: Placement
    loss: Loss
    trial: Trial
    labels: LabelRange | None


def prepare(settings: Settings, run: RunDirectory) -> PreparedRun:
    """Builds everything once and checks that it goes together.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    lazy_compiler.install()
    components = build(settings)
    notes = [note for check in CHECKS for note in check(settings, components)]
    start = start_of(settings, run, components.data.dataset, components.chain, components.timetable)
    placement = components.placement
    processes = 1 if components.finegrained else placement.num_processes
    job = Job(
        settings=settings,
        run=run,
        bounds=components.bounds,
        plan=[{"layers": stage.last - stage.first, "parameters": stage.parameters} for stage in components.plan.stages],
        timetable=components.timetable,
        segments=components.segments,
        placement=placement,
        threads=settings.threads or max(1, usable_cores() // processes),
        device=components.device,
        resume=start.checkpoint,
        finegrained=components.finegrained,
        provenance=provenance(components.device),
        finished=start.finished,
        labels=components.labels,
    )
    return PreparedRun(job, components.plan, _devices(job), start.step, list(dict.fromkeys([*notes, *start.notes])))


def build(settings: Settings) -> Components:
    """The objects of a run.

    Raises:
        ConfigError: one cannot be built.
    """
    settings.check_targets()
    device = device_of(settings.device)
    rule = build_rule(settings)
    data = build_data(settings)
    chain = build_chain(settings.model.target, data.dataset, settings.seed, **settings.model.build_options)
    finegrained = isinstance(rule, FineGrained)
    timetable = timetable_of(settings, len(data.train))
    plan = (
        rule.plan(chain, data.example)
        if isinstance(rule, FineGrained)
        else make_plan(
            chain,
            rule,
            data.example,
            weight_passes(settings, timetable),
            shares_weights=all(schedule.synchronous for schedule in build_schedules(settings)),
        )
    )
    bounds = [(stage.first, stage.last) for stage in plan.stages]
    stage_of = first_layers(chain, bounds, finegrained=finegrained)
    segments = build_recompute_segments(settings.train, len(bounds), stage_of)
    phases = build_phases(settings, timetable, len(bounds), segments)
    placement = common_placement([phase.rules.schedule for phase in phases], len(bounds))
    loss, trial = build_loss(settings, data.dataset), trial_of(data, chain, build_arithmetic(settings.train))
    return Components(
        device=device,
        data=data,
        chain=chain,
        plan=plan,
        bounds=bounds,
        finegrained=finegrained,
        timetable=timetable,
        segments=segments,
        phases=phases,
        placement=placement,
        loss=loss,
        trial=trial,
        labels=label_range(settings.model.target, data.dataset, trial, loss),
    )


def _check_finegrained(settings: Settings, components: Components) -> list[str]:
    if not components.finegrained:
        return []
    train = settings.train
    if not settings.executor.simulated:
        raise ConfigError("partition=finegrained cuts layers apart, which only executor=simulated can run")
    if settings.trace:
        raise ConfigError("trace=true: with partition=finegrained no stage runs by itself; leave trace out")
    if train.recompute and train.recompute_boundaries is None:
        raise ConfigError(
            "train.recompute=true: with partition=finegrained stages begin inside layers; name the layers that "
            "segments begin with, such as train.recompute_boundaries=[0]"
        )
    return []


def _check_ties(settings: Settings, components: Components) -> list[str]:
    chain, rules = components.chain, [phase.rules for phase in components.phases]
    if not settings.model.untie:
        if components.finegrained and not all(each.schedule.synchronous for each in rules):
            check_tied_units(chain, components.bounds)
        ties = [] if components.finegrained else ties_between(chain, components.bounds)
        return [f"{tie}, which sum its gradients before each update" for tie in ties]
    own = [f"{name} is a weight of its own beside {was}" for name, was in chain.untied.items()]
    return [f"model.untie=true: {', '.join(own) or 'no layers share a weight, so nothing changes'}"]


def _check_executor(settings: Settings, components: Components) -> list[str]:
    """What processes cannot do and a simulation can."""
    if settings.executor.simulated:
        return []
    for phase, chosen in zip(components.phases, settings.phases, strict=True):
        if phase.rules.method.simulated_only:
            with chosen.naming_errors():
                raise ConfigError(
                    f"method={chosen.choices['method']} reads weights that no pipeline of processes has; use "
                    "executor=simulated"
                )
    if settings.train.recompute_boundaries is not None:
        raise ConfigError(
            f"train.recompute_boundaries={settings.train.recompute_boundaries}: recomputation across stages is "
            "simulated only; use executor=simulated, or train.recompute=true, where each stage recomputes by itself"
        )
    return []


def _check_cut(_settings: Settings, components: Components) -> list[str]:
    return components.chain.notes


def _check_arithmetic(settings: Settings, components: Components) -> list[str]:
    train, unlisted = settings.train, [phase.rules for phase in components.phases if _unlisted(phase.rules)]
    if train.precision == "fp16" and (components.finegrained or unlisted):
        where = "partition=finegrained" if components.finegrained else f"schedule={unlisted[0].schedule.name}"
        raise ConfigError(f"train.precision=fp16: {where} leaves no room to scale the loss; train.precision=bf16 works")
    if train.compile:
        check_compiler(components.device)
    changing = _changing_method(settings, components)
    if train.compile and changing is not None and train.precision != "fp32":
        raise ConfigError(
            f"train.compile=true: with train.precision={train.precision} compiled layers keep casts of the weights "
            f"that their forward read, and method={changing} has the backward read others; take train.precision=fp32, "
            "or leave train.compile out"
        )
    if train.precision != "fp16":
        return []
    synchronous = all(phase.rules.schedule.synchronous for phase in components.phases)
    alone = "each stage by itself, since asynchronous stages cannot wait for each other's gradients"
    skipped = "an update whose gradients are not finite is skipped by"
    return [f"train.precision=fp16: the loss is scaled; {skipped} {'all stages alike' if synchronous else alone}"]


def _unlisted(rules: PipelineRules) -> bool:
    return not isinstance(rules.schedule, ListSchedule)


def _check_derived(settings: Settings, components: Components) -> list[str]:
    derived = derived_from_data(settings.model.target, components.data.dataset)
    told = ", ".join(f"model.{name}={value}" for name, value in derived.items())
    return [f"{told}: as the data show, which have no such attributes"] if derived else []


def _check_carried(_settings: Settings, components: Components) -> list[str]:
    check_carried(components.chain, {"train": components.data.train, "eval": components.data.evaluation})
    return []


def _check_dropped(settings: Settings, components: Components) -> list[str]:
    dropped, limit = components.data.train.dropped, settings.train.microbatches
    if not dropped:
        return []
    if hasattr(components.data.dataset.train, "batches"):
        return [f"{dropped} samples are in no minibatch, as the data set makes them"]
    return [f"the last {dropped} samples of each epoch are dropped: fewer than train.microbatches={limit}"]


def _check_notes(_settings: Settings, components: Components) -> list[str]:
    """What the data set has to say of itself, such as samples that it leaves out."""
    return [*getattr(components.data.dataset, "notes", ())]


def _check_phases(settings: Settings, components: Components) -> list[str]:
    notes = []
    for phase, chosen in zip(components.phases, settings.phases, strict=True):
        with chosen.naming_errors():
            notes += _check_lists(settings, components, phase.rules)
            notes += _check_method(settings, components.chain, phase.rules)
            notes += _clip_note(settings.optimizer.clip_norm, phase.rules, chosen.choices["method"])
    return notes


def _check_pinned(settings: Settings, components: Components) -> list[str]:
    useless = settings.dataset.pin_memory and components.device == "cpu"
    return ["dataset.pin_memory=true changes nothing: device=cpu copies no minibatch"] if useless else []


def _check_filled(settings: Settings, components: Components) -> list[str]:
    """Pipelines that only microbatches fill, and that have one: synchronous ones where the stages run side by side."""
    stages, train = len(components.bounds), settings.train
    if train.microbatches > 1 or stages == 1 or components.finegrained:
        return []
    enough = (n for n in range(stages, train.batch_size + 1) if train.batch_size % n == 0)
    advice = f"set train.microbatches={n}" if (n := next(enough, None)) else "set train.microbatches"
    return [
        f"warning: train.microbatches=1: under schedule={schedule.name} only one of the {stages} stages works at a "
        f"time, as in plain training; {advice} to run them side by side"
        for schedule in (phase.rules.schedule for phase in components.phases)
        if isinstance(schedule, ListSchedule) and schedule.synchronous and schedule.in_flight(0, stages, stages) > 1
    ]


def _check_lists(settings: Settings, components: Components, rules: PipelineRules) -> list[str]:
    if not isinstance(rules.schedule, ListSchedule):
        check_unlisted(settings, rules.schedule, components.data.train)
        _check_devices(components.device, components.placement)
        return notes_of(rules.schedule, components.placement)
    if not components.finegrained:  # its stages exchange nothing, and their lists are long
        rules.lists(2 * rules.contexts[0].delay + 1)
    return []


def _check_method(settings: Settings, chain: LayerChain, rules: PipelineRules) -> list[str]:
    parameters: list[nn.Parameter] = [p for p in chain.module.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError("model: no parameter requires a gradient; there is nothing to train")
    rules.method.check_optimizer(build_torch_optimizer(settings.optimizer, parameters))
    return [*rules.method.notes(rules.contexts)]


def _clip_note(limit: float | None, rules: PipelineRules, method: str) -> list[str]:
    if limit is None:
        return []
    alone = "per stage, since asynchronous stages have no common norm"
    where = "over all stages together" if rules.schedule.synchronous else alone
    return [f"gradients are clipped to optimizer.clip_norm={limit} {where} (method={method})"]


def _check_savable(_settings: Settings, components: Components) -> list[str]:
    for name, value in components.chain.module.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not tensor_file.takes(value.dtype):
            kind = f"tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(f"model: {name} is a {kind}, which checkpoints cannot hold; dense numbers work")
    return []


def _check_derived_weights(settings: Settings, components: Components) -> list[str]:
    changing = _changing_method(settings, components)
    if changing is None:
        return []
    layers = weight_derived_layers(components.chain, components.data.example, build_arithmetic(settings.train))
    if not layers:
        return []
    named = ", ".join(layers)
    saving = f"layer {named} saves a tensor derived from its weights; the backward pass will use it"
    if len(layers) > 1:
        saving = f"layers {named} save tensors derived from their weights; the backward pass will use them"
    return [f"warning: {saving} unchanged although method={changing} asks for another weight version"]


def _changing_method(settings: Settings, components: Components) -> str | None:
    """The first method whose backward may find other weights than its forward read."""
    phases = zip(components.phases, settings.phases, strict=True)
    return next((chosen.choices["method"] for phase, chosen in phases if _backward_reads_others(phase.rules)), None)


def _backward_reads_others(rules: PipelineRules) -> bool:
    """Whether some backward finds other weights than its forward read."""
    if rules.schedule.synchronous:
        return False
    minibatches = rules.contexts[0].delay + 2
    some = sorted({0, rules.num_stages // 2, rules.num_stages - 1})
    return any(rebinds_weights(rules.planned(r, minibatches)) for r in some)


def _check_targets(settings: Settings, components: Components) -> list[str]:
    """What only the workers use can be built as well."""
    if components.labels is not None:
        check_labels(settings, components.data, components.trial, components.labels)
    dataset, chain = components.data.dataset, components.chain
    check_loss(settings, components.trial, components.loss, decoded_metrics(settings, dataset, chain))
    build_rate(settings, components.timetable)(0)
    return []


def _check_decoding(settings: Settings, components: Components) -> list[str]:
    """A data set whose texts this model cannot generate trains all the same."""
    decoding = getattr(components.data.dataset, "decoding", None)
    if decoding is None or not settings.eval.decode or not settings.eval.every_epochs:
        return []
    problem = problem_of(decoding, components.chain)
    return [] if problem is None else [f"warning: evaluations generate no texts: {problem}"]


def _check_depth(settings: Settings, components: Components) -> list[str]:
    """Minibatches that the first stage may admit, but never gets."""
    for phase in settings.phases:
        depth, steps = phase.schedule.options.get("depth"), components.timetable.steps_per_epoch
        if depth is not None and depth > steps:
            with phase.naming_errors():
                raise ConfigError(
                    f"schedule.depth={depth}: an epoch, after which the pipeline drains, has {steps} steps"
                )
    return []


def _check_threads(settings: Settings, _components: Components) -> list[str]:
    most = _THREADS_PER_CORE * usable_cores()
    if settings.threads is not None and settings.threads > most:
        raise ConfigError(
            f"threads={settings.threads}: at most {most} here, {_THREADS_PER_CORE} for each of {usable_cores()} cores"
        )
    return []


CHECKS = (
    _check_finegrained,
    _check_ties,
    _check_executor,
    _check_cut,
    _check_arithmetic,
    _check_derived,
    _check_carried,
    _check_notes,
    _check_dropped,
    _check_pinned,
    _check_filled,
    _check_phases,
    _check_savable,
    _check_derived_weights,
    _check_targets,
    _check_decoding,
    _check_depth,
    _check_threads,
)
"""Each raises ConfigError for what cannot work, and returns what the user should know."""


def device_of(device: str) -> str:
    """cpu or cuda for the setting `device`.

    Raises:
        ConfigError: there is no CUDA device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda: torch finds no CUDA device here; device=cpu works, `pipetrain doctor` says more"
        )
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def _devices(job: Job) -> list[str]:
    if job.device == "cpu":
        return ["cpu"] * job.num_stages
    shared = 1 if job.settings.executor.simulated else torch.cuda.device_count()
    return [f"cuda:{job.placement.process_of(r) % shared}" for r in range(job.num_stages)]


def _check_devices(device: str, placement: Placement) -> None:
    """A library that moves the device's own memory needs a device for each process."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", placement.num_processes))
    if device == "cuda" and torch.cuda.device_count() < here:
        raise ConfigError(
            f"device=cuda: torch.distributed.pipelining needs a CUDA device for each of {here} processes, and there "
            f"are {torch.cuda.device_count()}; device=cpu works"
        )
