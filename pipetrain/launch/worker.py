"""One run from this process's point of view, in happening order: build, restore, train, save."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store

from pipetrain.errors import DivergedError, ExitCode
from pipetrain.executors.base import Executor
from pipetrain.executors.hooks import RunHooks
from pipetrain.executors.p2p import NEVER, LostStageError
from pipetrain.executors.pipeline import build_stages, connect_stages
from pipetrain.launch.memory import keep_freed_memory
from pipetrain.launch.pipeline import in_one_process, training_of
from pipetrain.launch.watchdog import BLAME_SECONDS, EXIT_LOST, Activity, Watchdog, leave_failure_note
from pipetrain.run import checkpoint
from pipetrain.run.build import Data, build_chain, build_data, build_phases, build_rate
from pipetrain.run.job import Job
from pipetrain.run.trainer import Trainer
from pipetrain.tracking import summary as summaries
from pipetrain.tracking.recorder import Recorder, Show
from pipetrain.tracking.trace_writer import TraceFile, assemble


def simulate(job: Job, show: Show) -> dict[str, Any]:
    """All stages in this process; the summary, also written."""
    run = _Run(job, 0, _device(job.device, 0))
    executor = in_one_process(job, run.chain, run.phases, run.training, RunHooks(run.on_step, trace=run.trace))
    try:
        return run.train(executor, show, barrier=None, coordinator=True) or {}
    except DivergedError as error:
        assert run.trainer is not None
        return run.finish("diverged", run.trainer.reports(), error)


def main(
    job: Job, show: Show = lambda record: None, on_signal: Callable[[], None] = lambda: None
) -> dict[str, Any] | None:
    """This process's stages, which torch's launcher started under a rank; the summary where the last stage is.

    Ends the process with exit code 3 when the loss is not finite, 75 when a neighbour is lost.
    """
    rank = int(os.environ["RANK"])
    keep_freed_memory()
    if job.device == "cuda":
        # a kernel that CUDA loads when it is first used may wait for the device, which may wait for a message behind it
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    activity = Activity()
    device = _device(job.device, int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group("gloo", timeout=NEVER)
    job = _agreed(job)
    places = job.placement
    local = int(os.environ.get("LOCAL_WORLD_SIZE", places.num_processes))
    device_to_device = _all(device.type == "cuda" and torch.cuda.device_count() >= local and dist.is_nccl_available())
    mine = places.stages_of[rank]
    run = _Run(job, mine[0], device)
    stages = build_stages(run.chain, job.bounds, run.training, mine)
    hooks = RunHooks(run.on_step, lambda op: activity.now(str(op)), activity.wait, activity.compute, run.trace)
    watch = Watchdog(
        rank,
        places.num_processes,
        job.run,
        job.settings.launch.hang_timeout,
        activity,
        _own_store(),
        run.own_reports,
        on_signal,
    )
    try:
        executor = connect_stages(stages, run.phases, hooks, run.training.clip_norm, device_to_device=device_to_device)
        summary = run.train(executor, show, barrier=dist.barrier, coordinator=rank == places.of_last_stage)
    except DivergedError as error:
        told = zip(places.stages_of, watch.stop_others(), strict=True)
        reports = [theirs or [{}] * len(expected) for expected, theirs in told]
        run.finish("diverged", places.in_order(reports), error)
        os._exit(ExitCode.DIVERGED)
    except LostStageError as error:
        leave_failure_note(job.run, rank, str(error))
        time.sleep(BLAME_SECONDS)
        os._exit(EXIT_LOST)
    watch.close()
    dist.destroy_process_group()
    return summary


class _Run:
    """A run's objects in one process, and what is done with them in turn."""

    def __init__(self, job: Job, stage: int, device: torch.device) -> None:
        torch.set_num_threads(job.threads)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        settings = job.settings
        self.job = job
        self.folder = job.run
        self.timetable = job.timetable
        self.data: Data = build_data(settings)
        self.chain = build_chain(settings.model, self.data.dataset, settings.seed)
        self.phases = build_phases(settings, job.timetable, job.num_stages, job.segments)
        self.rate = build_rate(settings, job.timetable)
        self.trace = self._trace(stage) if settings.trace else None
        self.training = training_of(settings, self.rate, device)
        self.trainer: Trainer | None = None
        self.recorder: Recorder | None = None

    def _trace(self, stage: int) -> TraceFile:
        step = checkpoint.load_progress(self.job.resume)["step"] if self.job.resume else 0
        return TraceFile(self.folder, stage, step)

    def on_step(self, minibatch: int, loss: torch.Tensor) -> None:
        assert self.recorder is not None
        self.recorder.step(minibatch, loss)

    def own_reports(self) -> list[dict[str, Any]]:
        return self.trainer.own_reports() if self.trainer else []

    def train(
        self, executor: Executor, show: Show, barrier: Callable[[], None] | None, coordinator: bool
    ) -> dict[str, Any] | None:
        """Restores, trains and saves; the summary where the last stage is."""
        progress = self._restore(executor)
        if executor.has_last_stage:
            history = self._history()
            every = self.job.settings.log.every_steps
            self.recorder = Recorder(self.folder, self.rate, self.data.train.sizes, every, progress, history, show)

        def save(step: int) -> None:
            checkpoint.save(
                self.folder.checkpoint(step),
                self._tensors(executor),
                self._progress(step),
                coordinator=coordinator,
                barrier=barrier,
            )

        target = self.job.settings.train.target
        self.trainer = Trainer(executor, self.data, self.timetable, self.recorder, save, target)
        self.trainer.step = progress.get("step", 0)
        self.trainer.reached = progress.get("target")
        if self.job.settings.checkpoint.at_start and not self.trainer.step:
            save(0)
        reports = self.trainer.run()
        return self.finish("completed", reports) if executor.has_last_stage else None

    def _restore(self, executor: Executor) -> dict[str, Any]:
        if self.job.resume is None:
            return {}
        folder = self.job.resume
        progress = checkpoint.load_progress(folder)
        for stage in executor.stages:
            checkpoint.restore(stage, folder, progress["step"])
        return progress

    def _history(self) -> dict[str, torch.Tensor]:
        if self.job.resume is None:
            return {}
        return checkpoint.load_history(self.job.resume)

    def _tensors(self, executor: Executor) -> dict[str, torch.Tensor]:
        tensors = self.recorder.history() if self.recorder else {}
        for stage in executor.stages:
            tensors.update(checkpoint.stage_tensors(stage))
        return tensors

    def _progress(self, step: int) -> dict[str, Any]:
        record = self.recorder.progress() if self.recorder else {}
        reached = self.trainer.reached if self.trainer else None
        return {"step": step, "target": reached, **self.job.head(), **record}

    def finish(self, status: str, reports: list[dict[str, Any]], error: DivergedError | None = None) -> dict[str, Any]:
        """Writes the summary and closes the files."""
        recorder, trainer = self.recorder, self.trainer
        assert recorder is not None
        assert trainer is not None
        steps = len(recorder.losses)
        summary: dict[str, Any] = {
            "status": status,
            **self.job.head(),
            "steps": steps,
            "epochs": round(steps / self.timetable.steps_per_epoch, 4),
            "wall_s": recorder.wall_s,
            "samples_per_second": recorder.samples_per_second,
            "target": trainer.reached,
            "final": recorder.final,
            "best": recorder.best,
            "weights_sha256": None,
            "loss_sha256": summaries.loss_sha256(recorder.losses),
            "stale_weight_share": self._stale_share(),
            "per_stage": [{**plan, **report} for plan, report in zip(self.job.plan, reports, strict=True)],
        }
        if error is not None:
            summary["diverged_at_step"] = error.step
            summary["reason"] = str(error)
        else:
            folder = self.folder.checkpoint(steps)
            summary["weights_sha256"] = summaries.weights_sha256(checkpoint.model_state(folder))
        if self.trace is not None:
            self.trace.close()
            assemble(self.folder, self.job.num_stages)
        recorder.close({**self.job.settings.choices, "stages": self.job.num_stages, "seed": self.job.settings.seed})
        summaries.write(self.folder, summary)
        return summary

    def _stale_share(self) -> float:
        parameters = [stage["parameters"] for stage in self.job.plan]
        return sum(parameters[:-1]) / sum(parameters) if sum(parameters) else 0.0


def _device(kind: str, local_rank: int) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _all(mine: bool) -> bool:
    """Whether it holds in every process: both ends of a connection must choose the same one."""
    answers = [mine] * dist.get_world_size()
    dist.all_gather_object(answers, mine)
    return all(answers)


def _agreed(job: Job) -> Job:
    """Workers that an outer launcher started each named a run directory; rank 0's is that of all."""
    places: list[Any] = [job.run, job.resume]
    dist.broadcast_object_list(places, src=0)
    return replace(job, run=places[0], resume=places[1])


def _own_store() -> Store:
    """A second connection to the store, for the watching thread alone: a request on one connection blocks the next."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    return dist.PrefixStore(
        "pipetrain/" + "/".join(attempt), dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    )
