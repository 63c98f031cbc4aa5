"""This process's one stage, connected to its neighbors by messages."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from typing_extensions import override

from pipetrain.engine.data.minibatches import Minibatches
from pipetrain.engine.executors.base import IntervalTimes, ManyProcesses
from pipetrain.engine.executors.evaluation import PartScore, metrics_of, on_host
from pipetrain.engine.executors.feed import Feed
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.control import all_gather_json, gather_tensors
from pipetrain.engine.executors.messages.neighbors import Neighbors
from pipetrain.engine.executors.messages.p2p import Key, evaluation_keys, training_keys
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.pipeline_rules import Phase
from pipetrain.engine.executors.read_cursor import ReadCursor
from pipetrain.engine.executors.replicas.overlapped_averaging import ReplicaGroups
from pipetrain.engine.executors.stage_runner import StageRunner
from pipetrain.engine.losses import NO_METRICS, Metrics, RunningMetrics
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import Kind
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors

_EVALUATION_AHEAD = 2


class DistributedExecutor(ManyProcesses):
    """One stage in this process. Without a transport, messages go through host memory."""

    def __init__(
        self,
        stage: Stage,
        phases: Sequence[Phase],
        hooks: RunHooks,
        clip_norm: float | None = None,
        transport: Transport | None = None,
    ) -> None:
        super().__init__([stage], phases, hooks, clip_norm, transport or Transport(stage.device))
        self._stage = stage
        stage.clock.traced = hooks.trace is not None
        self._ports = Neighbors(stage, self.replicas, self.transport, hooks.waiting)

    @override
    def train(self, loader: Minibatches, interval: DrainInterval) -> IntervalTimes:
        rules = self.enter(interval)
        cursor = ReadCursor(self._stage, rules, interval)
        keys = training_keys(loader, interval, rules.num_microbatches)
        self._ports.begin(interval.minibatches, cursor, keys)
        feed = self.feed(loader, interval, self.stages)
        runner = StageRunner(cursor, self._ports, feed, self.clip_norm, self.hooks)
        began, gate = time.perf_counter(), self.hooks.gate
        begun = gate.begun
        self._stage.clock.begin()  # while no message is awaited
        while runner.next:
            if cursor.opens and not gate.admits(cursor.opens):
                assert gate.ended_after is not None
                cursor.end_before(gate.ended_after - begun)
            else:
                runner.step()
        self._ports.end(early=gate.ended_after is not None)
        drained_at = self._drained()
        spans, seconds = self._stage.clock.take(), time.perf_counter() - began
        minibatches = interval.minibatches if gate.ended_after is None else gate.ended_after - begun
        if self.hooks.trace is not None and minibatches:
            traced = cursor.traced(spans, self._stage.clock.take_waits())
            self.hooks.trace.add(interval.ended_after(minibatches), [traced], drained_at)
        return IntervalTimes([1.0 - sum(span.seconds for span in spans) / seconds])

    @override
    def _drained(self) -> float:
        drained_at = super()._drained()
        if self._ports.replica_groups is not None:
            with self.hooks.waiting("the first replica's buffers"):
                self._stage.take_buffers(self._ports.replica_groups.of_first(self._stage.buffers))
        return drained_at

    @override
    def evaluate(self, loader: Minibatches, metrics: Metrics = NO_METRICS) -> dict[str, float] | None:
        keys = evaluation_keys(loader)
        stage, ports = self._stage, self._ports
        own = self.replicas.own(self.replicas.workers_of(stage.index)[stage.replica], len(keys))
        for (kind, peer), inbox in ports.incoming.items():
            if kind is Kind.FORWARD:
                inbox.expect(keys[part] for part in own if self.replicas.worker(stage.index - 1, part) == peer)
        feed = self.feed(loader, DrainInterval.whole(len(loader)), self.stages)
        outputs, begun = self._outputs(keys, own, feed), self.hooks.gate.begun
        if stage.loss is None or ports.replica_groups is None:
            found = self._metrics(outputs, feed, stage.loss, metrics)
            ports.end()
            return found
        evaluated, parts = metrics.begin(), list[PartScore]()
        count = ports.replica_groups.count
        for first in range(0, len(keys), count):
            given: Tensors = ()
            if first + stage.replica < len(keys):
                part, targets = next(outputs), feed.targets()
                parts.append(PartScore.of(stage.loss, part, targets))
                given = (*part, *targets.on_host)
            # before any waits for another, which the gate may not let through to its part
            self._come_to(begun + min(first + count, len(keys)))
            if metrics:
                self._update(evaluated, given, ports.replica_groups)
        ports.end()
        found = metrics_of(self._of_all_replicas(parts, ports.replica_groups))
        return found if stage.replica else found | evaluated.values()

    def _update(self, evaluated: RunningMetrics, given: Tensors, replicas: ReplicaGroups) -> None:
        """Updates the metrics of the first replica with the outputs and targets of all in a round, in their order."""
        with self.hooks.waiting("the other replicas' part of the evaluation"):
            rows = gather_tensors(given, replicas.control)
        for tensors in rows:
            if tensors:
                evaluated.update(tuple(tensor.to(self._stage.device) for tensor in tensors))

    def _of_all_replicas(self, parts: list[PartScore], replicas: ReplicaGroups) -> list[PartScore]:
        with self.hooks.waiting("the other replicas' part of the evaluation"):
            every = all_gather_json([asdict(part) for part in on_host(parts)], replicas.control)
        shares = [[PartScore(**each) for each in share] for share in every]
        return [share[i] for i in range(len(shares[0])) for share in shares if i < len(share)]

    def _outputs(self, keys: Sequence[Key], own: Sequence[int], feed: Feed) -> Iterator[Tensors]:
        ports, r = self._ports, self._stage.index
        for part in self.evaluated_parts(len(keys), own):
            if r == 0:
                inputs = feed.inputs()
            else:
                inputs = ports.incoming[Kind.FORWARD, self.replicas.worker(r - 1, part)].take()
            outputs = self._stage.evaluate(inputs)
            if r < self.num_stages - 1:
                outbox = ports.outgoing[Kind.FORWARD, self.replicas.worker(r + 1, part)]
                outbox.send(keys[part], outputs)
                outbox.settle(_EVALUATION_AHEAD)
            yield outputs
