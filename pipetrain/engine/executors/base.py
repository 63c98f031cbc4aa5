"""Interface of executors, which train and evaluate the stages of a process."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.data.minibatches import Minibatches
from pipetrain.engine.device_queue import lock_numbers, synchronize
from pipetrain.engine.executors.admission_gate import BrokenOffError
from pipetrain.engine.executors.evaluation import evaluate
from pipetrain.engine.executors.feed import Feed, Uploads
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages import control
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.losses import NO_METRICS, Loss, Metrics
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.stage.base import BaseStage
from pipetrain.engine.tensors import Tensors, dense


@dataclass(frozen=True)
class IntervalTimes:
    """Times of the stages of this process in an interval.

    Attributes:
        idle: idle share of the process of each stage; None if stages do not run one by one.
        predicted: seconds of each step if every stage had its own device and messages took no time; of a simulation.
    """

    idle: Sequence[float | None]
    predicted: Sequence[float] = ()


class Executor(ABC):
    """Trains and evaluates the stages of this process together with the stages of other processes."""

    stages: Sequence[BaseStage]
    """The stages of this process, in order."""
    rank: int
    """Rank of this process."""
    last_rank: int
    """Rank of the process of the last stage."""
    transport: Transport | None = None
    """Transport of tensors between processes; None in a single process."""
    unmeasured: ClassVar[tuple[str, ...]] = ()
    """Fields of a stage's report that cannot be known here."""

    def __init__(
        self, stages: Sequence[BaseStage], phases: Sequence[Phase], hooks: RunHooks, clip_norm: float | None
    ) -> None:
        self.stages = stages
        self._uploads = Uploads(stages[0].device)
        self._phases = phases
        self.clip_norm = clip_norm
        self._entered: int | None = None
        self.num_stages = phases[0].rules.num_stages
        self.replicas = phases[0].rules.replicas
        self.hooks = hooks

    def enter(self, interval: DrainInterval) -> PipelineRules:
        """The rules of the interval's phase, which its stages follow from now on."""
        phase = self._phases[interval.phase]
        if interval.phase != self._entered:
            self._entered = interval.phase
            fresh = interval.start == phase.start
            # a phase that predicts finds the last gradients of the phase before it
            predicts = any(each.rules.method.needs_prediction for each in self._phases[interval.phase :])
            for stage in self.stages:
                context = phase.rules.contexts[stage.index]
                stage.enter(phase.rules.method, context, phase.start, fresh=fresh, predicts=predicts)
        for stage in self.stages:
            stage.carried.begin(phase.rules.num_microbatches, epoch=interval.first == 0)
            if phase.rules.replicas.several:
                stage.begin_list(interval.start)
        return phase.rules

    def evaluated_parts(self, number: int, own: Sequence[int] | None = None) -> Iterator[int]:
        """Begins an evaluation, and yields the parts of its data, or those in `own`, until the run is to end.

        Raises:
            BrokenOffError: the run is to end; in every process before the same part.
        """
        for stage in self.stages:
            stage.carried.evaluated = {}
        begun = self.hooks.gate.begun
        for part in range(number) if own is None else own:
            self._come_to(begun + part + 1)
            self.hooks.on_progress(f"evaluation {part + 1} of {number}")
            yield part
        self._come_to(begun + number)

    def _come_to(self, count: int) -> None:
        """Passes the gate until it has admitted `count` minibatches and parts."""
        gate = self.hooks.gate
        while count > gate.begun and not gate.admits_part(count - gate.begun):
            if any(self.exchange(gate.ends)):
                raise BrokenOffError
            gate.open()

    def feed(self, loader: Minibatches, interval: DrainInterval, stages: Sequence[BaseStage]) -> Feed:
        """Data of the interval: inputs if `stages` include the first stage, targets if they include the last."""
        first, last = self._reads(stages)
        stage, replicas = stages[0], self._phases[interval.phase].rules.replicas
        own = replace(interval, first=min(interval.first + stage.replica, interval.last))
        every = replicas.counts[stage.index]
        return Feed(loader, own, self._uploads, inputs=first, targets=last, every=every)

    def _reads(self, stages: Sequence[BaseStage]) -> tuple[bool, bool]:
        """True if these stages read inputs, and True if they read targets."""
        return stages[0].index == 0, stages[-1].index == self.num_stages - 1

    def drains_by_itself(self, interval: DrainInterval) -> bool:
        """True if ending after any minibatch changes nothing: the pipeline is empty, and no round is cut short."""
        rules = self._phases[interval.phase].rules
        return rules.schedule.synchronous and not rules.replicas.several and rules.method.independent_replicas == 1

    @abstractmethod
    def train(self, loader: Minibatches, interval: DrainInterval) -> IntervalTimes:
        """Trains on the interval, and waits until every stage has finished it."""

    @abstractmethod
    def evaluate(self, loader: Minibatches, metrics: Metrics = NO_METRICS) -> dict[str, float] | None:
        """The loss and metrics over the whole evaluation set where the last stage is, None elsewhere.

        Of the replicas of the last stage, only the first one has `metrics`; the rest have the loss's own.

        Raises:
            BrokenOffError: the run is to end; in every process.
        """

    @abstractmethod
    def whole_state(self) -> dict[str, Tensor] | None:
        """Weights that evaluations read, and buffers, of all stages by full name where the last stage is, else None.

        The tensors are only to be read, and only until training continues.
        """

    @abstractmethod
    def exchange(self, value: Any, *, background: bool = False) -> list[Any]:
        """Values of all processes by rank, in every process. All call it with a value that JSON can hold, and wait.

        `background` takes separate connections, for one other thread of each process during training.
        """

    @abstractmethod
    def gather(self, values: Sequence[Any]) -> list[Any]:
        """Values of all stages and their replicas, in every process, given one for each stage of this process."""

    def broadcast_from_last(self, value: Any) -> Any:
        """Value given by the process of the last stage, in every process."""
        return self.exchange(value)[self.last_rank]

    def own_state(self) -> dict[str, Tensor]:
        """Weights that evaluations read, and buffers, of the stages of this process by full name, not copied.

        Only the first replica of a stage has them.
        """
        first = [stage for stage in self.stages if stage.replica == 0]
        return {name: tensor for stage in first for name, tensor in {**stage.state(), **stage.averages}.items()}


class OneProcess(Executor):
    """Executor with all stages in one process."""

    rank = last_rank = 0

    @override
    def whole_state(self) -> dict[str, Tensor]:
        return {name: dense(tensor.detach()) for name, tensor in self.own_state().items()}

    @override
    def exchange(self, value: Any, *, background: bool = False) -> list[Any]:
        return [value]

    @override
    def gather(self, values: Sequence[Any]) -> list[Any]:
        return list(values)


class ManyProcesses(Executor):
    """Executor with stages in several processes; torch.distributed's default group carries control messages."""

    @override
    def __init__(
        self,
        stages: Sequence[BaseStage],
        phases: Sequence[Phase],
        hooks: RunHooks,
        clip_norm: float | None,
        transport: Transport,
    ) -> None:
        super().__init__(stages, phases, hooks, clip_norm)
        self.transport: Transport = transport
        if transport.direct:
            lock_numbers()
            if any(self._reads(stages)):
                self._uploads.lock()
        self._placement = phases[0].rules.placement
        self.rank, self.last_rank = dist.get_rank(), self._placement.of_last_stage
        self._background = transport.control_group()

    @override
    def whole_state(self) -> dict[str, Tensor] | None:
        return control.collect_tensors(self.own_state(), self.last_rank, self.hooks.waiting)

    @override
    def exchange(self, value: Any, *, background: bool = False) -> list[Any]:
        if background:
            return control.all_gather_json(value, self._background)
        with self.hooks.waiting("all processes"):
            return control.all_gather_json(value)

    @override
    def gather(self, values: Sequence[Any]) -> list[Any]:
        return self._placement.in_order(self.exchange(list(values)))

    def _drained(self) -> float:
        """Waits until the stages of all processes have drained and their devices are idle; returns when that was."""
        synchronize(self.transport.device)
        with self.hooks.waiting("the drain of all stages"), control.lost_stage_on_error():
            dist.barrier()
        return time.perf_counter()

    def _metrics(
        self, outputs: Iterable[Tensors], feed: Feed, loss: Loss | None, metrics: Metrics
    ) -> dict[str, float] | None:
        if loss is not None:
            return evaluate(outputs, feed.targets, loss, metrics, self.hooks.waiting)
        deque(outputs, maxlen=0)
        return None
