"""The objects of a run, built by preflight to see that they can be, and in each worker to train with them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.data.fingerprint import Fingerprint, difference, fingerprint_like
from pipetrain.engine.data.interface import DataSet
from pipetrain.engine.data.ranges import LabelRange
from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.engine.executors.pipeline_rules import Phase, common_placement
from pipetrain.engine.libraries import lazy_compiler
from pipetrain.engine.losses import Loss, Metrics
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.weight_units import weight_units
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.schedules import Placement
from pipetrain.runner.config.phases import naming_phase
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.partition.finegrained import stages_of_layers
from pipetrain.runner.partition.run_plan import Plan, Unplanned, planned
from pipetrain.runner.training.builders.data import Data, build_data
from pipetrain.runner.training.builders.loss import build_loss, build_metrics
from pipetrain.runner.training.builders.machine import device_of
from pipetrain.runner.training.builders.model import build_arithmetic, build_model, naming_types
from pipetrain.runner.training.builders.pipeline import (
    build_partition_rule,
    build_phases,
    build_recompute_segments,
    build_schedule,
)
from pipetrain.runner.training.builders.weight_traffic import weight_memory_traffic
from pipetrain.runner.training.checks.dry_run import DryRun, training_dry_run
from pipetrain.runner.training.checks.ranges import label_range
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.timetable import Timetable, timetable_of


@dataclass(frozen=True)
class Components:
    """The objects of a run; the properties among them are built when they are first read.

    Attributes:
        device: cpu or cuda.

    Raises:
        ConfigError: from a property, if its object cannot be built.
    """

    settings: Settings
    device: str
    data: Data
    chain: LayerChain
    timetable: Timetable
    plan: Plan

    @cached_property
    def segments(self) -> RecomputeSegments | None:
        """Stages that recompute together; None if none recomputes."""
        if self.plan.finegrained:
            stage_of = stages_of_layers(weight_units(self.chain), self.plan.bounds)
        else:
            stage_of = {first: r for r, (first, _) in enumerate(self.plan.bounds)}
        return build_recompute_segments(self.settings.train, len(self.plan.bounds), stage_of)

    @cached_property
    def phases(self) -> list[Phase]:
        """Schedule and method of each phase."""
        settings, timetable, num_stages = self.settings, self.timetable, len(self.plan.bounds)
        replicas = replace(settings.replicas, counts=self.plan.replicas)
        try:
            return build_phases(settings, timetable, num_stages, self.segments, replicas)
        except ConfigError as error:
            if replicas == settings.replicas:
                raise
            build_phases(settings, timetable, num_stages, self.segments)  # raises if they are not the reason
            path = settings.partition.options.get("path")
            where = "partition=auto" if path is None else f"partition.path={path}"
            raise ConfigError(
                f"{where}: its stages have replicas, {'-'.join(map(str, replicas.counts or ()))}: {error}; or "
                "planner.straight=true plans without"
            ) from error

    @cached_property
    def placement(self) -> Placement:
        """Process of each stage."""
        return common_placement([phase.rules.schedule for phase in self.phases], len(self.plan.bounds))

    @cached_property
    def loss(self) -> Loss:
        """Loss of the last stage."""
        return build_loss(self.settings, self.data.dataset)

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics of evaluations in addition to those of the loss."""
        return build_metrics(self.settings)

    @property
    def lower_is_better(self) -> tuple[str, ...]:
        """Names of metrics, in addition to those of the loss, that fall as the model improves."""
        decoded = getattr(DataSet(self.data.dataset).decoding, "lower_is_better", ())
        # without decoding, a further metric may have the name of a decoded one
        return *self.metrics.lower_is_better, *(name for name in decoded if name not in self.metrics.fresh)

    @property
    def arithmetic_of_checks(self) -> ComputeOptions:
        """Arithmetic of the checks, which compute on the CPU: fp32 for a run on a GPU, as a CPU may lack the others."""
        arithmetic = build_arithmetic(self.settings.train)
        return arithmetic if self.device == "cpu" else replace(arithmetic, precision="fp32")

    @cached_property
    def trial(self) -> DryRun:
        """The model's outputs for the first samples."""
        return training_dry_run(self.data, self.chain, self.arithmetic_of_checks)

    @cached_property
    def data_read(self) -> Mapping[str, Fingerprint]:
        """The fingerprint of each split."""
        return self.data.fingerprints()

    def check_data_as_prepared(self, prepared: Mapping[str, Fingerprint]) -> None:
        """Checks that this process reads the samples that were read when the run was prepared.

        Raises:
            RunError: one is another.
        """
        loaders = {"train": self.data.train, "eval": self.data.evaluation}
        for name, before in prepared.items():
            found = difference(fingerprint_like(before, loaders[name], repeats=False), before)
            if found is not None:
                raise RunError(
                    f"dataset: {found[0]} of its `{name}` is {found[1]} here, but {found[2]} when the run was "
                    "prepared; its code must give the same samples in every process"
                )

    @cached_property
    def labels(self) -> LabelRange | None:
        """Range of the labels that the model can learn; None if the loss is not over classes."""
        return label_range(self.settings.model.target, self.data.dataset, self.trial, self.loss)


def build(settings: Settings, resume: Path | None = None) -> Components:
    """The objects of a run, before it starts.

    Args:
        settings: of the run.
        resume: the checkpoint to continue from.

    Raises:
        ConfigError: an object cannot be built.
    """
    settings.check_targets()
    device = device_of(settings.device)
    rule = build_partition_rule(settings)
    data = build_data(settings)
    chain = build_model(settings, data.dataset)
    timetable = timetable_of(settings, len(data.train))
    shares_weights = True
    for phase in settings.phases:
        with naming_phase(phase.number):
            shares_weights &= build_schedule(phase).synchronous
    run = Unplanned(settings, chain, data, weight_memory_traffic(settings, timetable), shares_weights, resume)
    with naming_types(chain.module, chain, data.example):
        plan = planned(run, rule)
    return Components(settings, device, data, chain, timetable, plan)


def build_data_in_worker(job: Job, device: torch.device) -> Data:
    """The data of a run in one of its processes, whose threads and device it sets first."""
    lazy_compiler.install()
    torch.set_num_threads(job.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    data = build_data(job.settings)
    data.expect(job.labels, job.tokens)
    return data


def build_in_worker(job: Job, data: Data) -> Components:
    """The objects of a run in one of its processes, with the plan and the timetable of the job.

    Raises:
        RunError: the model has other layers than in preflight.
    """
    chain = build_model(job.settings, data.dataset)
    if not job.plan.finegrained and len(chain) != job.plan.bounds[-1][1]:
        raise RunError(
            f"model: {len(chain)} layers here, but {job.plan.bounds[-1][1]} when the run was prepared; its code must "
            "build the same layers in every process"
        )
    return Components(job.settings, job.device, data, chain, job.timetable, job.plan)
