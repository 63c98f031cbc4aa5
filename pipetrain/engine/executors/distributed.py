"""This process's stages, connected to their neighbors by messages."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from typing_extensions import override

from pipetrain.engine.data.minibatches import Minibatches
from pipetrain.engine.executors.admission_gate import BrokenOffError
from pipetrain.engine.executors.base import IntervalTimes, ManyProcesses
from pipetrain.engine.executors.evaluation import PartScore, metrics_of, on_host
from pipetrain.engine.executors.feed import Feed
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.control import all_gather_json, gather_tensors
from pipetrain.engine.executors.messages.neighbors import Connections, Neighbors
from pipetrain.engine.executors.messages.p2p import Key, TrainingKeys, evaluation_keys
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
    """The stages of this process, in its order. Without a transport, messages go through host memory."""

    def __init__(
        self,
        stages: Sequence[Stage],
        phases: Sequence[Phase],
        hooks: RunHooks,
        clip_norm: float | None = None,
        transport: Transport | None = None,
    ) -> None:
        super().__init__(stages, phases, hooks, clip_norm, transport or Transport(stages[0].device))
        self.stages: Sequence[Stage] = stages
        for stage in stages:
            stage.clock.traced = hooks.trace is not None
        connections = Connections(stages, phases[0].rules, self.transport, hooks.waiting)
        self._ports = {each.index: Neighbors(each, connections) for each in stages}
        for stage in stages:
            groups = self._ports[stage.index].replica_groups
            if self.replicas.train_alone and groups is not None:
                stage.average_through(groups.exchange_of_weights(hooks.waiting))

    @override
    def train(self, loader: Minibatches, interval: DrainInterval) -> IntervalTimes:
        rules = self.enter(interval)
        keys = TrainingKeys(loader, interval, rules.num_microbatches)
        runners, feed = {}, self.feed(loader, interval, self.stages)
        for stage in self.stages:
            cursor, ports = ReadCursor(stage, rules, interval), self._ports[stage.index]
            own = keys
            if stage.messages is not None:
                stage.messages.begin(loader, interval, rules.num_microbatches)
                own = keys.with_form(stage.messages.form(interval.epoch))
            ports.begin(interval.minibatches, cursor, own)
            runners[stage.index] = StageRunner(cursor, ports, feed, self.clip_norm, self.hooks)
        began, gate = time.perf_counter(), self.hooks.gate
        begun = gate.begun
        for stage in self.stages:
            stage.clock.begin()  # while no message is awaited
        self._run(runners, rules.order(self.rank, interval.minibatches), begun)
        for runner in runners.values():
            deque(runner.settle(), maxlen=0)
        for ports in self._ports.values():
            ports.end(early=gate.ended_after is not None)
        drained_at = self._drained()
        spans = {stage.index: stage.clock.take() for stage in self.stages}
        seconds = time.perf_counter() - began
        minibatches = interval.minibatches if gate.ended_after is None else gate.ended_after - begun
        if self.hooks.trace is not None and minibatches:
            traced = [runners[r].cursor.traced(each, runners[r].stage.clock.take_waits()) for r, each in spans.items()]
            self.hooks.trace.add(interval.ended_after(minibatches), traced, drained_at)
        busy = sum(span.seconds for each in spans.values() for span in each)
        return IntervalTimes([1.0 - busy / seconds for _ in self.stages])

    def _run(self, runners: Mapping[int, StageRunner], order: Sequence[int], begun: int) -> None:
        """Runs the lists of all stages of this process in its order."""
        gate, cursors, place = self.hooks.gate, [runner.cursor for runner in runners.values()], 0
        while place < len(order):
            runner = runners[order[place]]
            if (opens := runner.cursor.opens(max(cursor.entered for cursor in cursors))) and not gate.admits(opens):
                assert gate.ended_after is not None
                for cursor in cursors:
                    cursor.end_before(gate.ended_after - begun)
                # the order of the shorter lists begins with what was carried out of the longer ones
                order = cursors[0].rules.order(self.rank, gate.ended_after - begun)
                continue
            if len(runners) > 1 and runner.updates_next:
                for each in runners.values():  # other processes may need the parts of all before this one updates
                    if each.updates_next:
                        each.ready_to_update()
            runner.step()
            place += 1

    @override
    def _drained(self) -> float:
        drained_at = super()._drained()
        for stage in self.stages:
            groups = self._ports[stage.index].replica_groups
            if groups is not None:
                with self.hooks.waiting("the first replica's buffers"):
                    stage.take_buffers(groups.of_first(stage.buffers))
        return drained_at

    @override
    def evaluate(self, loader: Minibatches, metrics: Metrics = NO_METRICS) -> dict[str, float] | None:
        keys = evaluation_keys(loader)
        stage = self.stages[-1]
        own = self.replicas.own(self.replicas.workers_of(stage.index)[stage.replica], len(keys))
        for r, ports in self._ports.items():
            for (kind, peer), inbox in ports.incoming.items():
                if kind is Kind.FORWARD:
                    inbox.begin([keys[part] for part in own if self.replicas.worker(r - 1, part) == peer])
        feed = self.feed(loader, DrainInterval.whole(len(loader)), self.stages)
        outputs, begun = self._outputs(keys, own, feed), self.hooks.gate.begun
        groups = self._ports[stage.index].replica_groups
        if stage.loss is None or groups is None:
            found = self._metrics(outputs, feed, stage.loss, metrics)
            self._end_evaluation()
            return found
        evaluated, parts = metrics.begin(), list[PartScore]()
        count = groups.count
        for first in range(0, len(keys), count):
            given: Tensors = ()
            if first + stage.replica < len(keys):
                part, targets = next(outputs), feed.targets()
                parts.append(PartScore.of(stage.loss, part, targets))
                given = (*part, *targets.on_host)
            # before any waits for another, which the gate may not let through to its part
            self._come_to(begun + min(first + count, len(keys)))
            if metrics:
                self._update(evaluated, given, groups)
        self._end_evaluation()
        found = metrics_of(self._of_all_replicas(parts, groups))
        return found if stage.replica else found | evaluated.values()

    def _end_evaluation(self) -> None:
        for ports in self._ports.values():
            ports.end()

    def _update(self, evaluated: RunningMetrics, given: Tensors, replicas: ReplicaGroups) -> None:
        """Updates the metrics of the first replica with the outputs and targets of all in a round, in their order."""
        with self.hooks.waiting("the other replicas' part of the evaluation"):
            rows = gather_tensors(given, replicas.control)
        for tensors in rows:
            if tensors:
                evaluated.update(tuple(tensor.to(self.stages[-1].device) for tensor in tensors))

    def _of_all_replicas(self, parts: list[PartScore], replicas: ReplicaGroups) -> list[PartScore]:
        with self.hooks.waiting("the other replicas' part of the evaluation"):
            every = all_gather_json([asdict(part) for part in on_host(parts)], replicas.control)
        shares = [[PartScore(**each) for each in share] for share in every]
        return [share[i] for i in range(len(shares[0])) for share in shares if i < len(share)]

    def _outputs(self, keys: Sequence[Key], own: Sequence[int], feed: Feed) -> Iterator[Tensors]:
        """Outputs of the last stage of this process for each part; its stages take turns, each with another part.

        A part that the gate refuses ends the evaluation once the later stages have passed on those before it.
        """
        last, gate = self.stages[-1], -1
        # all processes in the same turn: were one a turn behind at a pause, it could wait for another's next turn
        opens = 0 if self._placement.several else last.index
        places = [(opens, gate), *((stage.index, stage.index) for stage in self.stages)]
        turns = sorted((part + after, r, part) for after, r in places for part in own)
        by_index, parts = {stage.index: stage for stage in self.stages}, self.evaluated_parts(len(keys), own)
        refused: tuple[int, BrokenOffError] | None = None
        for _, r, part in turns:
            if refused is not None and part >= refused[0]:
                continue
            if r == gate:
                try:
                    next(parts)
                except BrokenOffError as error:
                    refused = part, error
                continue
            inbox = None if r == 0 else self._ports[r].incoming[Kind.FORWARD, self.replicas.worker(r - 1, part)]
            outputs = by_index[r].evaluate(feed.inputs() if inbox is None else inbox.take())
            if r < self.num_stages - 1:
                outbox = self._ports[r].outgoing[Kind.FORWARD, self.replicas.worker(r + 1, part)]
                outbox.send(keys[part], outputs)
                outbox.settle(_EVALUATION_AHEAD)
            if r == last.index:
                yield outputs
        if refused is not None:
            raise refused[1]
        deque(parts, maxlen=0)
