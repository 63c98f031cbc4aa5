"""Runs many jobs over the same worker processes, as the launcher would start them one by one."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from support.forking import FORK_SERVER, forked
from support.methods import MethodCase
from support.small_model import bounds
from torch.distributed import TCPStore

from pipetrain.runner.config.composition import settings_of
from pipetrain.runner.config.schema import ExecutorConfig
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.launch import fork_server
from pipetrain.runner.launch.signals import Interruption
from pipetrain.runner.launch.watchdog import Watchdog
from pipetrain.runner.launch.worker import main, run_simulated
from pipetrain.runner.partition.run_plan import Plan, StagePlan
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.components.loss import build_metrics, falling_metrics
from pipetrain.runner.training.components.replicas import replicated
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.timetable import timetable_of

FORK_SERVER[:] = [fork_server.start]  # one for all tests of a process, which has imported what a run needs

CONFIG: dict[str, Any] = {
    "dataset": {
        "_target_": "pipetrain.zoo.data.images.synthetic.synthetic_images",
        "channels": 1,
        "classes": 4,
        "size": 8,
        "train": 22,
        "eval": 10,
    },
    "model": {"_target_": "support.small_model.build"},
    "partition": {"_target_": "pipetrain.runner.partition.rules.Explicit"},
    "loss": {"_target_": "pipetrain.engine.losses.CrossEntropy"},
    "lr_schedule": {"_target_": "pipetrain.zoo.optim.lr_schedules.Polynomial", "unit": "step"},
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4},
    "train": {"epochs": 2, "batch_size": 4},
    "checkpoint": {"every_epochs": 0},
    "launch": {"hang_timeout": 60.0},
    "log": {"to": []},  # importing TensorBoard takes longer than the run
    "seed": 3,
}
"""A tiny run, as far as it differs from the defaults; its partition is `small_model.bounds`."""


def phase(case: str | MethodCase, **end: int) -> dict[str, Any]:
    """An entry of `phases`, resolved; `end` is steps or epochs."""
    sections = MethodCase.named(case).sections()
    return {**sections, "steps": None, "epochs": None, **end, "names": _names(case)}


def _names(case: str | MethodCase) -> dict[str, str]:
    method, schedule = MethodCase.named(case)
    return {"method": case if isinstance(case, str) else method.name, "schedule": schedule.name}


def settings(case: str | MethodCase, /, **changes: Any) -> Settings:
    """Those of a tiny run; `changes` name settings, such as train={"microbatches": 2}.

    A section with a target of its own takes the place of ours, other mappings change settings of it.
    """
    config = {**json.loads(json.dumps(CONFIG)), **MethodCase.named(case).sections()}
    train = changes.pop("train", {})
    for section, values in changes.items():
        merges = isinstance(values, dict) and "_target_" not in values
        config[section] = {**config.get(section, {}), **values} if merges else values
    choices = {**_names(case), "model": "small", "dataset": "synthetic_images"}
    typed = settings_of(OmegaConf.create(config), choices)
    # unchecked: microbatches that do not divide the batch size are welcome here
    return replace(typed, train=replace(typed.train, **train))


_SETTINGS: dict[str, Settings] = {}
"""Those of earlier jobs: composing them takes longer than some of the runs, and most are asked for several times."""


def job(run: Path, case: str | MethodCase, num_stages: int, /, *, resume: Path | None = None, **changes: Any) -> Job:
    """A tiny run of `settings`, cut at `bounds`; `resume` is the checkpoint that it continues."""
    asked = repr((case, changes))
    chosen = _SETTINGS.get(asked) or settings(case, **changes)
    _SETTINGS[asked] = chosen
    data = build_data(chosen)
    return Job(
        settings=chosen,
        run=RunDirectory(run),
        plan=plan_of(bounds(num_stages), chosen.replicas.counts),
        timetable=timetable_of(chosen, len(data.train)),
        placement=replicated(chosen.phases[0].schedule.build(), num_stages, chosen.replicas).placement(num_stages),
        threads=1,
        device=os.environ.get("DEVICE", "cpu"),
        resume=resume,
        lower_is_better=falling_metrics(build_metrics(chosen.metrics), data.dataset),
    )


def plan_of(bounds: Sequence[tuple[int, int]], replicas: tuple[int, ...] | None = None) -> Plan:
    """The plan of these stages, of one parameter each."""
    return Plan("explicit", [StagePlan(first, last, [], 1, 0.0, 0, 4) for first, last in bounds], replicas=replicas)


def on(executor: str, job: Job) -> Job:
    """The same job on an executor."""
    return replace(job, settings=replace(job.settings, executor=ExecutorConfig(executor)))


def simulated(job: Job) -> dict[str, Any]:
    """The summary of the simulated run."""
    job.run.path.mkdir(parents=True, exist_ok=True)
    return run_simulated(on("simulated", job), lambda _record: None, Interruption())


def distributed(jobs: list[Job], function: Callable[..., None] | None = None) -> list[dict[str, Any]]:
    """The summaries of the distributed runs of `jobs`, one after the other on the same processes.

    A process without a part in a job goes on to the next.

    Args:
        jobs: with directories that nobody else writes to.
        function: what each process calls; None for `run_jobs`, which it is to call with its own arguments.
    """
    for each in jobs:
        each.run.path.mkdir(parents=True, exist_ok=True)
    jobs = [on("distributed", each) for each in jobs]
    # a store for each, as a worker that is ahead must not reach that of the job before
    stores = [TCPStore("localhost", 0, is_master=True, wait_for_workers=False) for _ in jobs]
    forked(function or run_jobs, jobs, [store.port for store in stores], count=max(map(num_processes, jobs)))
    return [json.loads(each.run.summary.read_text()) for each in jobs]


def num_processes(job: Job) -> int:
    """How many processes a distributed run has."""
    return job.placement.num_processes


def run_jobs(rank: int, jobs: list[Job], ports: list[int]) -> None:
    """Carries out this process's part of each job, whose store is at a port of this machine."""
    for each, port in zip(jobs, ports, strict=True):
        if rank >= num_processes(each):
            continue
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(num_processes(each)),
            MASTER_ADDR="localhost",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCHELASTIC_RESTART_COUNT="0",
        )
        with Watchdog(rank, num_processes(each), each.run, each.settings.launch, lambda _beat: None) as watchdog:
            main(each, watchdog)
