"""The objects of a run, built once to see that they can be, and what they say about each other."""

from dataclasses import dataclass, replace

from pipetrain.config.settings import ReplicaSettings, Settings
from pipetrain.data.ranges import LabelRange
from pipetrain.executors.pipeline_rules import Phase
from pipetrain.executors.torch_pipelining.limits import common_placement
from pipetrain.losses import Loss, Metrics
from pipetrain.models.chain import LayerChain
from pipetrain.planner.partition.automatic import AutoPartition, PlannedPartition
from pipetrain.planner.partition.finegrained import FineGrained
from pipetrain.planner.run_plan import Plan, make_plan
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.run.builders.data import Data, build_data
from pipetrain.run.builders.loss import build_loss, build_metrics
from pipetrain.run.builders.machine import device_of
from pipetrain.run.builders.model import build_arithmetic, build_model
from pipetrain.run.builders.pipeline import (
    build_recompute_segments,
    build_rule,
    build_schedules,
    first_layers,
    phases_of_rule,
    replicas_of,
)
from pipetrain.run.builders.weight_traffic import weight_memory_traffic
from pipetrain.run.checks.dry_run import DryRun, training_dry_run
from pipetrain.run.checks.ranges import label_range
from pipetrain.run.profiling.auto_partition import plan_cuts
from pipetrain.run.resume import StartPoint
from pipetrain.run.timetable import Timetable, replayed_drains, timetable_of
from pipetrain.schedules import Placement

_FRESH = StartPoint()


@dataclass(frozen=True)
class Components:
    """The objects of a run, built once to see that they can be, and what they say about each other.

    Attributes:
        bounds: (first layer, last layer exclusive) of each stage; weight units in place of layers where `finegrained`.
        finegrained: True if stages are of single weights.
        segments: which stages recompute together; None if none does.
        placement: which process has which stages.
        replicas: how many processes have each.
        loss, trial: the loss, and what the model makes of the first samples.
        metrics: of evaluations, in addition to those of the loss.
        labels: those that the model can learn; None if the loss is not over classes.
        account: how the cuts were found, where they were planned.
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
    replicas: ReplicaSettings
    loss: Loss
    metrics: Metrics
    trial: DryRun
    labels: LabelRange | None
    account: list[str]


def build(settings: Settings, found: StartPoint = _FRESH) -> Components:
    """The objects of a run.

    Args:
        settings: of the run.
        found: the state that it resumes from.

    Raises:
        ConfigError: one cannot be built.
    """
    settings.check_targets()
    device = device_of(settings.device)
    rule = build_rule(settings)
    data = build_data(settings)
    chain = build_model(settings, data.dataset)
    finegrained = isinstance(rule, FineGrained)
    timetable = timetable_of(settings, len(data.train), replayed_drains(settings))
    shares_weights = all(schedule.synchronous for schedule in build_schedules(settings))
    account: list[str] = []
    if isinstance(rule, AutoPartition):
        rule, account = plan_cuts(settings, rule, found, data, chain, shares_weights=shares_weights)
    traffic = weight_memory_traffic(settings, timetable)
    plan = (
        rule.plan(chain, data.example)
        if isinstance(rule, FineGrained)
        else make_plan(chain, rule, data.example, traffic, shares_weights=shares_weights)
    )
    plan = rule.timed(plan) if isinstance(rule, PlannedPartition) else plan
    replicas = replicas_of(settings, rule)
    plan = replace(plan, replicas=replicas.counts)
    bounds = [(stage.first, stage.last) for stage in plan.stages]
    stage_of = first_layers(chain, bounds, finegrained=finegrained)
    segments = build_recompute_segments(settings.train, len(bounds), stage_of)
    phases = phases_of_rule(settings, rule, timetable, len(bounds), segments)
    placement = common_placement([phase.rules.schedule for phase in phases], len(bounds))
    loss, trial = build_loss(settings, data.dataset), training_dry_run(data, chain, build_arithmetic(settings.train))
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
        replicas=replicas,
        loss=loss,
        metrics=build_metrics(settings),
        trial=trial,
        labels=label_range(settings.model.target, data.dataset, trial, loss),
        account=account,
    )
