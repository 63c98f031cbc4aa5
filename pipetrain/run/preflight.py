"""Everything that can be wrong with a run, found before a process is started or a file overwritten."""

from dataclasses import dataclass

import torch

from pipetrain.config.settings import Settings
from pipetrain.libraries import lazy_compiler
from pipetrain.planner.plan import Plan
from pipetrain.run.checks import CHECKS
from pipetrain.run.components import build
from pipetrain.run.cores import usable_cores
from pipetrain.run.job import Job
from pipetrain.run.provenance import provenance
from pipetrain.run.resume import resumption
from pipetrain.run.start import start_of
from pipetrain.tracking.run_directory import RunDirectory


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


def prepare(settings: Settings, run: RunDirectory) -> PreparedRun:
    """Builds everything once and checks that it goes together.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    lazy_compiler.install()
    found = resumption(settings, run)
    components = build(settings, found)
    notes = [note for check in CHECKS for note in check(settings, components)]
    start = start_of(settings, run, found, components)
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
        tokens=components.trial.tokens,
        replicas=components.replicas,
    )
    return PreparedRun(job, components.plan, _devices(job), start.step, list(dict.fromkeys([*notes, *start.notes])))


def _devices(job: Job) -> list[str]:
    if job.device == "cpu":
        return ["cpu"] * job.num_stages
    shared = 1 if job.settings.executor.simulated else torch.cuda.device_count()
    return [f"cuda:{job.placement.process_of(r) % shared}" for r in range(job.num_stages)]
