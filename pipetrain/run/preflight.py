"""Everything that can be wrong with a run, found before a process is started or a file overwritten."""

import os
from dataclasses import dataclass

from pipetrain.config.settings import Settings
from pipetrain.executors.messages.transport import DeviceIdentity, transport_between
from pipetrain.libraries import lazy_compiler
from pipetrain.libraries.processes import usable_cores
from pipetrain.planner.run_plan import Plan
from pipetrain.run.builders.machine import device_at
from pipetrain.run.checks.data import check_data
from pipetrain.run.checks.model import check_model
from pipetrain.run.checks.pipeline import check_pipeline
from pipetrain.run.components import build
from pipetrain.run.job import Job
from pipetrain.run.provenance import provenance
from pipetrain.run.resume import check_start, find_start
from pipetrain.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start.

    Attributes:
        job: for the processes.
        plan: the partition.
        notes: what the user should know.
    """

    job: Job
    plan: Plan
    notes: list[str]


def prepare(settings: Settings, run: RunDirectory) -> PreparedRun:
    """Builds everything once and checks that it goes together.

    Raises:
        ConfigError: the first setting that cannot work.
    """
    lazy_compiler.install()
    found = find_start(settings, run)
    components = build(settings, found)
    notes = [note for check in (check_model, check_data, check_pipeline) for note in check(settings, components)]
    start = check_start(settings, run, found, components.timetable, components.data.dataset, components.chain)
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
        lower_is_better=components.metrics.lower_is_better,
    )
    notes = list(dict.fromkeys([*notes, *_transport(job), *start.notes]))
    return PreparedRun(job, components.plan, notes)


def _transport(job: Job) -> list[str]:
    """A line on how stages on GPUs exchange messages, as far as that is known before their processes meet."""
    processes = job.placement.num_processes
    if job.device == "cpu" or job.settings.executor.simulated or processes == 1:
        return []
    if "RANK" in os.environ:
        return ["messages: over NCCL if each process has a GPU of its own; summary.json says which way they went"]
    devices = [device_at(job.device, process) for process in range(processes)]
    found = transport_between(devices[0], [DeviceIdentity.of(device) for device in devices])
    way = "from GPU to GPU over NCCL" if found.direct else "through host memory over Gloo"
    return [f"messages: {way}, as {found.reason}"]


def stage_devices(job: Job) -> list[str]:
    """The device of each stage."""
    if job.device == "cpu":
        return ["cpu"] * job.num_stages
    simulated = job.settings.executor.simulated
    return [str(device_at(job.device, 0 if simulated else job.placement.process_of(r))) for r in range(job.num_stages)]
