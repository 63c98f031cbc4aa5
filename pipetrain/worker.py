"""One run from this process's point of view, in happening order: build, restore, train, save."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store

from pipetrain import checkpoint
from pipetrain.build import (
    Data,
    build_chain,
    build_data,
    build_loss,
    build_phases,
    build_rate,
    optimizer_builder,
    total_steps,
)
from pipetrain.errors import DivergedError
from pipetrain.executors.base import Executor
from pipetrain.executors.distributed import DistributedExecutor
from pipetrain.executors.finegrained import FinegrainedExecutor, UnitStage, WholeModel
from pipetrain.executors.simulated import SimulatedExecutor
from pipetrain.executors.torch_pipelining import TorchPipeliningExecutor
from pipetrain.models.chain import LayerChain
from pipetrain.observe import summary as summaries
from pipetrain.observe.recorder import Recorder, Show
from pipetrain.observe.trace import TraceFile, assemble
from pipetrain.planner.finegrained import names_of, stages_of_layers, weight_units
from pipetrain.schedules import Placement
from pipetrain.stage import Stage
from pipetrain.stage_module import StageModule
from pipetrain.trainer import Timetable, Trainer
from pipetrain.transport import NEVER, LostStageError
from pipetrain.watch import BLAME_SECONDS, EXIT_LOST, Activity, Watch, failure_note

EXIT_DIVERGED = 3


@dataclass(frozen=True)
class Job:
    """All that a process needs to know of a run; made once, where it is started.

    Attributes:
        config: the resolved configuration.
        names: what was chosen of each group, such as {"model": "resnet20"}.
        run: the run directory.
        bounds: (first layer, last layer exclusive) of each stage; weight units in place of layers where `finegrained`.
        plan: what is known of each stage before it runs, for the summary.
        threads: intra-op threads of each process.
        device: cpu or cuda.
        resume: the checkpoint to continue from.
        finegrained: whether stages are of single weights.
        placed: which process has which stages; null: one each.
    """

    config: dict[str, Any]
    names: dict[str, str]
    run: str
    bounds: list[tuple[int, int]]
    plan: list[dict[str, Any]]
    threads: int
    device: str
    resume: str | None = None
    finegrained: bool = False
    placed: Placement | None = None

    @property
    def stages(self) -> int:
        """D."""
        return len(self.bounds)

    @property
    def placement(self) -> Placement:
        """Which process has which stages, where each has its own."""
        return self.placed or Placement.one_each(self.stages)

    def head(self) -> dict[str, Any]:
        """The first fields of the summary."""
        names = {name: self.names[name] for name in ("method", "schedule", "model", "dataset")}
        return {**names, "executor": self.config["executor"]["name"], "stages": self.stages}


def simulate(job: Job, show: Show) -> dict[str, Any]:
    """All stages in this process; the summary, also written."""
    run = _Run(job, list(range(job.stages)), torch.device(job.device))
    executor = run.finegrained_executor() if job.finegrained else run.simulated_executor()
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
    activity = Activity()
    device = _device(job.device, int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group("gloo", timeout=NEVER)
    job = _agreed(job)
    places = job.placement
    local = int(os.environ.get("LOCAL_WORLD_SIZE", places.processes))
    direct = device.type == "cuda" and torch.cuda.device_count() >= local
    run = _Run(job, list(places.stages[rank]), device)
    watch = Watch(
        rank,
        places.processes,
        Path(job.run),
        job.config["launch"]["hang_timeout"],
        activity,
        _own_store(),
        run.own_reports,
        on_signal,
    )
    try:
        executor = run.executor_of_processes(activity, direct)
        summary = run.train(executor, show, barrier=dist.barrier, coordinator=rank == places.of_last_stage)
    except DivergedError as error:
        reports = [theirs or [{}] * len(mine) for mine, theirs in zip(places.stages, watch.stop_others(), strict=True)]
        run.finish("diverged", places.in_order(reports), error)
        os._exit(EXIT_DIVERGED)
    except LostStageError as error:
        failure_note(Path(job.run), rank, str(error))
        time.sleep(BLAME_SECONDS)
        os._exit(EXIT_LOST)
    watch.close()
    dist.destroy_process_group()
    return summary


class _Run:
    """A run's objects in one process, and what is done with them in turn."""

    def __init__(self, job: Job, mine: list[int], device: torch.device) -> None:
        torch.set_num_threads(job.threads)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        config = job.config
        self.job = job
        self.folder = Path(job.run)
        self.clip_norm: float | None = config["optimizer"].get("clip_norm")
        self.data: Data = build_data(config)
        chain = build_chain(config, self.data.dataset)
        stage_of = first_layers(chain, job.bounds, job.finegrained)
        self.phases = build_phases(config, job.names, job.stages, stage_of, self.data)
        steps_per_epoch = len(self.data.train)
        self.timetable = Timetable(
            total_steps(config, job.names, steps_per_epoch),
            steps_per_epoch,
            config["eval"]["every_epochs"],
            config["checkpoint"]["every_epochs"],
            config["checkpoint"]["every_steps"],
            [phase.end for phase in self.phases],
        )
        self.rate = build_rate(config, steps_per_epoch, self.timetable.total_steps)
        self._chain = chain
        self._device = device
        self.stages = [] if job.finegrained else self._build_stages(mine, chain, device)
        self.trace = self._trace(mine[0]) if config["trace"] else None
        self.trainer: Trainer | None = None
        self.recorder: Recorder | None = None

    def _trace(self, stage: int) -> TraceFile:
        step = checkpoint.load_progress(Path(self.job.resume))["step"] if self.job.resume else 0
        return TraceFile(self.folder, stage, step)

    def _build_stages(self, mine: list[int], chain: LayerChain, device: torch.device) -> list[Stage]:
        optimizer = optimizer_builder(self.job.config, self.rate)
        stages = []
        for r in mine:
            loss = build_loss(self.job.config) if r == self.job.stages - 1 else None
            stages.append(Stage(r, chain, *self.job.bounds[r], optimizer, loss, self.job.config["seed"], device))
        return stages

    def executor_of_processes(self, activity: Activity, direct: bool) -> Executor:
        """The stages of this process, connected to those of the others."""
        if not self.phases[0].rules.schedule.listed:
            return TorchPipeliningExecutor(
                self.stages,
                self.phases,
                self.job.placement,
                self.clip_norm,
                self.on_step,
                activity.compute,
                activity.wait,
                direct,
            )
        return DistributedExecutor(
            self.stages[0],
            self.phases,
            self.clip_norm,
            self.on_step,
            lambda op: activity.now(str(op)),
            activity.wait,
            direct,
            self.trace,
        )

    def simulated_executor(self) -> SimulatedExecutor:
        """All stages in this process, each with its layers."""
        return SimulatedExecutor(self.stages, self.phases, self.clip_norm, self.on_step, trace=self.trace)

    def finegrained_executor(self) -> FinegrainedExecutor:
        """All stages in this process, each with single weights."""
        config, chain = self.job.config, self._chain
        units = weight_units(chain)
        module = StageModule(chain.layers, 0, config["seed"]).to(self._device)
        optimizer = optimizer_builder(config, self.rate)
        stages = [
            UnitStage(r, names_of(units[first:last]), module, optimizer, self._device)
            for r, (first, last) in enumerate(self.job.bounds)
        ]
        segments = config["train"]["recompute_boundaries"]
        loss = build_loss(config)
        if isinstance(loss, torch.nn.Module):
            loss = loss.to(self._device)
        model = WholeModel(module, loss, None if segments is None else tuple(segments))
        return FinegrainedExecutor(stages, model, self.phases, self.clip_norm, self.on_step)

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
            every = self.job.config["log"]["every_steps"]
            self.recorder = Recorder(self.folder, self.rate, self.data.train.sizes, every, progress, history, show)

        def save(step: int) -> None:
            folder = self.folder / "checkpoints" / checkpoint.checkpoint_name(step)
            checkpoint.save(folder, self._tensors(executor), self._progress(step), coordinator, barrier)

        target = self.job.config["train"]["target"]
        self.trainer = Trainer(executor, self.data, self.timetable, self.recorder, save, target)
        self.trainer.step = progress.get("step", 0)
        self.trainer.reached = progress.get("target")
        if self.job.config["checkpoint"]["at_start"] and not self.trainer.step:
            save(0)
        reports = self.trainer.run()
        return self.finish("completed", reports) if executor.has_last_stage else None

    def _restore(self, executor: Executor) -> dict[str, Any]:
        if self.job.resume is None:
            return {}
        folder = Path(self.job.resume)
        progress = checkpoint.load_progress(folder)
        for stage in executor.stages:
            checkpoint.restore(stage, folder, progress["step"])
        return progress

    def _history(self) -> dict[str, torch.Tensor]:
        if self.job.resume is None:
            return {}
        return checkpoint.load_tensors(Path(self.job.resume), lambda name: name.startswith(checkpoint.HISTORY))

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
            folder = self.folder / "checkpoints" / checkpoint.checkpoint_name(steps)
            summary["weights_sha256"] = summaries.weights_sha256(checkpoint.model_state(folder))
        if self.trace is not None:
            assemble(self.folder, self.job.stages)
        recorder.close({**self.job.names, "stages": self.job.stages, "seed": self.job.config["seed"]})
        summaries.write(self.folder, summary)
        return summary

    def _stale_share(self) -> float:
        parameters = [stage["parameters"] for stage in self.job.plan]
        return sum(parameters[:-1]) / sum(parameters) if sum(parameters) else 0.0


def first_layers(chain: LayerChain, bounds: Sequence[tuple[int, int]], finegrained: bool) -> dict[int, int]:
    """First layer of a stage -> the stage; `bounds` as those of a Job."""
    if finegrained:
        return stages_of_layers(weight_units(chain), bounds)
    return {first: r for r, (first, _) in enumerate(bounds)}


def _device(kind: str, local_rank: int) -> torch.device:
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _agreed(job: Job) -> Job:
    """Workers that an outer launcher started each named a run directory; rank 0's is that of all."""
    places = [job.run, job.resume]
    dist.broadcast_object_list(places, src=0)
    return replace(job, run=str(places[0]), resume=places[1])


def _own_store() -> Store:
    """A second connection to the store, for the watching thread alone: a request on one connection blocks the next."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    return dist.PrefixStore(
        "pipetrain/" + "/".join(attempt), dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    )
