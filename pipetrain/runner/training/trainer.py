"""A run from its first step to its last: intervals, epochs, evaluation, when to save, when to stop."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipetrain.engine.errors import ConfigError, DivergedError
from pipetrain.engine.executors.admission_gate import BrokenOffError
from pipetrain.engine.executors.base import Executor
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.stage.measurements import memory_report
from pipetrain.runner.tracking.evaluations import lower_is_better, reaches
from pipetrain.runner.tracking.run_recorder import Recorder
from pipetrain.runner.training.checkpoint.progress import TrainingState
from pipetrain.runner.training.checkpoint_saver import CheckpointSaver
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.outcome import reports_by_stage
from pipetrain.runner.training.timetable import Timetable
from pipetrain.runner.training.whole_model import WholeModelMetrics
from pipetrain.runner.training.worker import Components


@dataclass
class Trainer:
    """Carries out the timetable on the stages of this process; all processes do so in step.

    Attributes:
        recorder: in the process of the last stage; None elsewhere.
        decoder: of metrics that need the whole model; None if there are no such metrics.
        saved_at: the step of the newest checkpoint of this run; None if that step may have to be saved again.
    """

    job: Job
    executor: Executor
    components: Components
    state: TrainingState
    checkpoints: CheckpointSaver
    recorder: Recorder | None
    decoder: WholeModelMetrics | None = None
    interrupted: bool = field(default=False, init=False)
    saved_at: int | None = field(default=None, init=False)
    _idle: list[float] = field(default_factory=list, init=False)
    _idle_steps: int = field(default=0, init=False)

    @property
    def _timetable(self) -> Timetable:
        return self.job.timetable

    def run(self) -> list[dict[str, Any]]:
        """Trains from the state's step until the run has ended; the measured report of every stage.

        Raises:
            DivergedError: in the process of the last stage.
        """
        state = self.state
        if state.evaluation_due:
            self._evaluate()
            self._save_if_due()
        while not self.interrupted and not state.ended(self._timetable):
            interval = next(self._timetable.intervals(state.step))
            self._note_drain(interval, interval.start, "resume")
            if self._train(interval):
                self._stop(interval)
                continue
            if self._timetable.ends_epoch(state.step):
                self._end_epoch()
            self._save_if_due()
        return self.reports()

    def _train(self, interval: DrainInterval) -> bool:
        """Trains the interval; True if it ended early, perhaps before its first minibatch."""
        if self.recorder:
            self.recorder.begin(interval)
        gate = self.executor.hooks.gate
        begun = gate.begun
        times = self.executor.train(self.components.data.train, interval)
        steps = interval.minibatches if gate.ended_after is None else gate.ended_after - begun
        self.state.step = interval.start + steps
        if steps:
            self.state.metrics = {}
            self._add_idle(times.idle, steps)
            self.record_staleness()
            if self.recorder:
                self.recorder.drain(times.predicted)
            self._check_weights()
        return gate.ended_after is not None

    def _check_weights(self) -> None:
        """Ends the run if a weight is not finite, as such weights shall neither be saved nor evaluated.

        The loss of a later step would show it, but this may have been the last one. An update leaves NaN as it is, so a
        look at every drain is enough.

        Raises:
            DivergedError: in the process of the last stage; the other processes wait until it has ended the run.
        """
        found = [name for name in self.executor.gather([stage.not_finite() for stage in self.executor.stages]) if name]
        if not found:
            return
        if self.recorder:
            raise DivergedError(self.state.step, f"{found[0]} is not finite after step {self.state.step}")
        self.executor.broadcast_from_last(None)

    def record_staleness(self) -> None:
        """Records the distances between weights that the stages have measured since the last drain, if they do."""
        meters = [stage.staleness for stage in self.executor.stages]
        if any(meters):
            measured = self.executor.gather([meter.take() if meter is not None else [] for meter in meters])
            if self.recorder:
                places = self.executor.replicas.places
                self.recorder.staleness([r for r, _ in places], measured)

    def _stop(self, interval: DrainInterval) -> None:
        """Saves the state of the run, unless it has just been saved or no step was made; ends or continues."""
        gate = self.executor.hooks.gate
        self.interrupted = any(self.executor.exchange(gate.ends))
        self._note_drain(interval, self.state.step, "signal" if self.interrupted else "clock")
        self._save_once()
        if not self.interrupted:
            gate.open()

    def _save_if_due(self) -> None:
        due = self._timetable.saves(self.state.step) or self.state.ended(self._timetable)
        if due and not self.interrupted:
            self._save_once()

    def _save_once(self) -> None:
        """Saves this step, unless that has been done or there is nothing yet."""
        if self.state.step and self.state.step != self.saved_at:
            self.checkpoints.save(self.state)
            self.saved_at = self.state.step

    def _note_drain(self, interval: DrainInterval, step: int, cause: str) -> None:
        """Records a drain after `step` steps that the settings do not ask for, unless that is known."""
        expected = self._timetable.drains(step) or self.executor.drains_by_itself(interval)
        if expected or step in self.state.extra_drains:
            return
        self.state.extra_drains.append(step)
        if self.recorder:
            self.recorder.extra_drain(step, cause)

    def _end_epoch(self) -> None:
        self.executor.hooks.on_progress("ending the epoch")
        self.state.measured = self.reports()
        if self.recorder:
            self.recorder.epoch(self.state.step, self.state.measured)
        if self._timetable.evaluates(self.state.step):
            self.state.evaluation_due = True
            self._save_if_due()  # an evaluation may take long, and be interrupted
            self._evaluate()

    def _evaluate(self) -> None:
        """Evaluates at this step; saves it if a signal ends the run meanwhile."""
        state, gate = self.state, self.executor.hooks.gate
        began, openings = time.perf_counter(), gate.openings
        try:
            metrics = self.executor.evaluate(self.components.data.evaluation, self.components.metrics)
            due = self._timetable.decodes(state.step) or self._ends_with(metrics or {})
            complete = self.decoder is None or (due and self._decode(self.decoder, metrics))
        except BrokenOffError:
            self.interrupted = True
            self._save_once()
            return
        state.evaluation_due = False
        state.metrics = metrics or {}
        if self.recorder and metrics is not None:
            epoch = -(-state.step // self._timetable.steps_per_epoch)
            self.recorder.evaluation(state.step, metrics, time.perf_counter() - began)
            if state.reached is None and self._reaches_target(metrics, complete=complete):
                state.reached = {"step": state.step, "epoch": epoch, "wall_s": self.recorder.clock.wall_s}
            if state.stopping is not None:
                state.stopping.add(metrics, epoch, self._lower_is_better)
        if state.target:
            state.reached = self.executor.broadcast_from_last(state.reached)
        if state.stopping is not None:
            state.stopping.continue_from(self.executor.broadcast_from_last(state.stopping.fields()))
        if state.step == self.saved_at:
            self.checkpoints.add_evaluation(state)
        elif gate.openings > openings:  # the clock has asked for a checkpoint meanwhile
            self._save_once()

    def _decode(self, decoder: WholeModelMetrics, metrics: dict[str, float] | None) -> bool:
        """Adds the metrics of the whole model: the process of the last stage has it, and the others wait.

        Raises:
            BrokenOffError: the run is to end; raised in every process.
        """
        whole = self.executor.whole_state()
        decoded: dict[str, float] | None = {}
        try:
            decoded = {} if whole is None else decoder.metrics_with(whole)
        except BrokenOffError:
            decoded = None
        if self.executor.broadcast_from_last(decoded is None):
            self.executor.hooks.gate.end_here()
            raise BrokenOffError
        if metrics is not None and decoded:
            metrics.update(decoded)
            self.state.signatures = decoder.signatures
        return bool(decoded)

    def _ends_with(self, metrics: Mapping[str, float]) -> bool:
        """True if these metrics end the run before its last step; asked of the process of the last stage."""
        if not self.state.target and self.state.stopping is None:
            return False
        ends = False
        if self.recorder and metrics:
            stopping = copy.copy(self.state.stopping)
            if stopping is not None:
                stopping.add(metrics, 0, self._lower_is_better)
            ends = (stopping is not None and stopping.ended) or self._reaches_target(metrics, complete=False)
        return bool(self.executor.broadcast_from_last(ends))

    def _reaches_target(self, metrics: Mapping[str, float], *, complete: bool) -> bool:
        target = self.state.target
        if not target:
            return False
        if unknown := target.keys() - metrics.keys():
            if not complete:
                return False
            raise ConfigError(f"train.target: no metric {min(unknown)}; an evaluation gives {', '.join(metrics)}")
        lower = self._lower_is_better
        return all(reaches(metrics[name], wanted, lower=name in lower) for name, wanted in target.items())

    @property
    def _lower_is_better(self) -> frozenset[str]:
        return lower_is_better(self.job.lower_is_better)

    def reports(self) -> list[dict[str, Any]]:
        """Measured reports of all stages of the run, in every process."""
        return reports_by_stage(self.executor.gather(self.own_reports()), self.executor.replicas)

    def own_reports(self) -> list[dict[str, Any]]:
        """Measured reports of this process's stages."""
        unmeasured, reports = dict.fromkeys(self.executor.unmeasured), list[dict[str, Any]]()
        for i, stage in enumerate(self.executor.stages):
            idle = self._idle[i] if self._idle else None
            reports.append({**stage.report(), **unmeasured, **memory_report(stage.device), "idle_share": idle})
        return reports

    def _add_idle(self, shares: Sequence[float | None], steps: int) -> None:
        known = [share for share in shares if share is not None]
        if len(known) == len(shares):
            old, total = self._idle or [0.0] * len(known), self._idle_steps + steps
            self._idle = [(a * self._idle_steps + b * steps) / total for a, b in zip(old, known, strict=True)]
            self._idle_steps = total
