"""A run from its first step to its last: segments, epochs, evaluation, when to save, when to stop."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipetrain.errors import ConfigError
from pipetrain.executors.admission_gate import BrokenOffError
from pipetrain.executors.base import Executor
from pipetrain.losses import NO_METRICS, Metrics
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.run.builders.data import Data
from pipetrain.run.decoder import Decoder
from pipetrain.run.outcome import reports_by_stage
from pipetrain.run.timetable import Timetable
from pipetrain.stage.measurements import memory_report
from pipetrain.tracking.evaluations import lower_is_better, reaches
from pipetrain.tracking.run_recorder import Recorder

Save = Callable[[int], None]
"""Writes a checkpoint after so many steps, or adds to it; called in every process together."""


@dataclass
class Trainer:
    """Carries out the timetable on the stages of this process; all processes do so in step.

    Attributes:
        recorder: where the last stage is; None elsewhere.
        target: metrics at which the run ends.
        reached: when they were reached.
        step: minibatches trained so far.
        measured: the report of every stage at the end of the last epoch.
        extra_drains: steps after which the pipeline of an asynchronous schedule drained though the settings do not ask
            for it, in earlier parts of the run as well; a run that does not drain there has other bits from there on.
        interrupted: True if the run was interrupted.
        metrics: of an evaluation at this very step, where the last stage is.
        further: metrics of evaluations in addition to those of the loss, where the last stage is.
        decoder: of the metrics that need the whole model; None if there are no such metrics.
        add_evaluation: adds the evaluation at this very step to the checkpoint of it.
        evaluation_due: True if the run has yet to be evaluated at this very step.
        saved_at: the step of the newest checkpoint of this run; None if that step may have to be saved again.
    """

    executor: Executor
    data: Data
    timetable: Timetable
    recorder: Recorder | None
    save: Save
    target: Mapping[str, float] | None = None
    reached: dict[str, Any] | None = None
    step: int = 0
    measured: list[dict[str, Any]] = field(default_factory=list)
    extra_drains: list[int] = field(default_factory=list)
    interrupted: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    further: Metrics = NO_METRICS
    decoder: Decoder | None = None
    add_evaluation: Save = lambda _step: None
    evaluation_due: bool = False
    saved_at: int | None = None
    _idle: list[float] = field(default_factory=list)
    _idle_steps: int = 0

    def run(self) -> list[dict[str, Any]]:
        """Trains from `step` to the end or the target; the measured report of every stage.

        Raises:
            DivergedError: in the process of the last stage.
        """
        if self.evaluation_due:
            self._evaluate()
            self._save_if_due()
        while not (self.interrupted or self.reached) and self.step < self.timetable.total_steps:
            interval = next(self.timetable.intervals(self.step))
            self._note_drain(interval, interval.start, "resume")
            if self._train(interval):
                self._stop(interval)
                continue
            self._note_drain(interval, self.step, "replay")
            if self.timetable.ends_epoch(self.step):
                self._end_epoch()
            self._save_if_due()
        return self.reports()

    def _train(self, interval: DrainInterval) -> bool:
        """Trains the interval; whether it ended early, or before its first minibatch."""
        if self.recorder:
            self.recorder.begin(interval)
        gate = self.executor.hooks.gate
        begun = gate.begun
        times = self.executor.train(self.data.train, interval)
        ended_after = gate.ended_after
        self.step = interval.start + (interval.minibatches if ended_after is None else ended_after - begun)
        if self.step > interval.start:
            self.metrics = {}
            self._add_idle(times.idle, self.step - interval.start)
            if self.recorder:
                self.recorder.drain(times.predicted)
        return ended_after is not None

    def _stop(self, interval: DrainInterval) -> None:
        """Saves the state of the run, unless it has just been saved or no step was made; ends or continues."""
        gate = self.executor.hooks.gate
        self.interrupted = any(self.executor.exchange(gate.ends))
        self._note_drain(interval, self.step, "signal" if self.interrupted else "clock")
        self._save_once()
        if not self.interrupted:
            gate.open()

    def _save_if_due(self) -> None:
        done = bool(self.reached) or self.step == self.timetable.total_steps
        if not self.interrupted and (self.timetable.saves(self.step) or done):
            self._save_once()

    def _save_once(self) -> None:
        """Saves this step, unless that has been done or there is nothing yet."""
        if self.step and self.step != self.saved_at:
            self.save(self.step)
            self.saved_at = self.step

    def _note_drain(self, interval: DrainInterval, step: int, cause: str) -> None:
        """Takes down a drain after `step` steps that the settings do not ask for, unless that is known."""
        expected = self.timetable.drains(step) or self.executor.drains_by_itself(interval)
        if expected or step in self.extra_drains:
            return
        self.extra_drains.append(step)
        if self.recorder:
            self.recorder.extra_drain(step, cause)

    def _end_epoch(self) -> None:
        self.executor.hooks.on_progress("ending the epoch")
        self.measured = self.reports()
        if self.recorder:
            self.recorder.epoch(self.step, self.measured)
        if self.timetable.evaluates(self.step):
            self.evaluation_due = True
            self._save_if_due()  # an evaluation may take long, and be broken off
            self._evaluate()

    def _evaluate(self) -> None:
        """Evaluates at this step, or saves it where the run is to end meanwhile."""
        began, openings = time.perf_counter(), self.executor.hooks.gate.openings
        try:
            metrics = self.executor.evaluate(self.data.evaluation, self.further)
            complete = self.decoder is None or self._decode(self.decoder, metrics)
        except BrokenOffError:
            self.interrupted = True
            self._save_once()
            return
        self.evaluation_due = False
        self.metrics = metrics or {}
        if self.recorder and metrics is not None:
            self.recorder.evaluation(self.step, metrics, time.perf_counter() - began)
            self.reached = self.reached or self._target_reached(metrics, complete=complete)
        if self.target:
            self.reached = self.executor.broadcast_from_last(self.reached)
        if self.step == self.saved_at:
            self.add_evaluation(self.step)
        elif self.executor.hooks.gate.openings > openings:  # the clock has asked for a checkpoint meanwhile
            self._save_once()

    def _decode(self, decoder: Decoder, metrics: dict[str, float] | None) -> bool:
        """Adds the metrics of the whole model, if due: the process of the last stage has it, and the others wait.

        Raises:
            BrokenOffError: the run is to end; raised in every process.
        """
        if not self.timetable.decodes(self.step):
            return False
        state = self.executor.whole_state()
        found: dict[str, float] | None = {}
        try:
            found = {} if state is None else decoder.metrics_with(state)
        except BrokenOffError:
            found = None
        if self.executor.broadcast_from_last(found is None):
            self.executor.hooks.gate.end_here()
            raise BrokenOffError
        if metrics is not None and found:
            metrics.update(found)
        return bool(found)

    def _target_reached(self, metrics: Mapping[str, float], *, complete: bool) -> dict[str, Any] | None:
        if not self.target or self.recorder is None:
            return None
        if unknown := self.target.keys() - metrics.keys():
            if not complete:
                return None
            raise ConfigError(f"train.target: no metric {min(unknown)}; an evaluation gives {', '.join(metrics)}")
        lower = lower_is_better(self.further.lower_is_better)
        if not all(reaches(metrics[name], wanted, lower=name in lower) for name, wanted in self.target.items()):
            return None
        epoch = -(-self.step // self.timetable.steps_per_epoch)
        return {"step": self.step, "epoch": epoch, "wall_s": self.recorder.clock.wall_s}

    def reports(self) -> list[dict[str, Any]]:
        """Measured reports of all stages of the run, in every process."""
        return reports_by_stage(self.executor.gather(self.own_reports()), self.executor.replicas)

    def own_reports(self) -> list[dict[str, Any]]:
        """Measured reports of this process's stages."""
        idle: Sequence[float | None] = self._idle or [None] * len(self.executor.stages)
        unmeasured = dict.fromkeys(self.executor.unmeasured)
        return [
            {**stage.report(), **unmeasured, **memory_report(stage.device), "idle_share": share}
            for stage, share in zip(self.executor.stages, idle, strict=True)
        ]

    def _add_idle(self, shares: Sequence[float | None], steps: int) -> None:
        known = [share for share in shares if share is not None]
        if len(known) < len(shares):
            return
        old = self._idle or [0.0] * len(known)
        total = self._idle_steps + steps
        self._idle = [(a * self._idle_steps + b * steps) / total for a, b in zip(old, known, strict=True)]
        self._idle_steps = total


def progress_of_target(reached: Mapping[str, Any] | None, target: Mapping[str, float] | None) -> dict[str, Any]:
    """Fields of a checkpoint about the run's target."""
    return {"target": reached, "target_wanted": target}


def target_reached(progress: Mapping[str, Any], target: Mapping[str, float] | None) -> dict[str, Any] | None:
    """Time at which a run reached its target, from its checkpoint; None if that was a different target."""
    return progress.get("target") if progress.get("target_wanted") == target else None


def evaluation_due(progress: Mapping[str, Any], timetable: Timetable) -> bool:
    """True if a checkpoint was saved before the evaluation at its step, and the continuing run evaluates there, too."""
    return bool(progress.get("evaluation_due")) and timetable.evaluates(progress["step"])
