"""The schedule and method of a phase: what every stage does and reads, and whether what ran was that."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import takewhile

from pipetrain.engine.errors import ConfigError, InvariantError
from pipetrain.engine.methods import Method
from pipetrain.engine.program.custom_schedule import is_custom
from pipetrain.engine.program.planned_operations import PlannedOperation, planned_operations
from pipetrain.engine.program.playback import Orders
from pipetrain.engine.program.recomputation import RecomputeSegments, steady_with_recomputation, with_recomputation
from pipetrain.engine.program.repeating_list import Item, repeating
from pipetrain.engine.program.validation import MOST_IN_FLIGHT, validate
from pipetrain.engine.program.weight_reads import (
    ReadContext,
    StageContext,
    closed_form_context,
    query_method,
    staleness,
)
from pipetrain.engine.schedules import Kind, ListSchedule, Operation, Placement, Schedule
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.operation import forward, update
from pipetrain.engine.schedules.round_robin import RoundRobin

_STEADY = 1 << 20
"""A minibatch long after any drain."""


class PipelineRules:
    """A schedule and a method for D stages and N microbatches, and the segments of stages that recompute together.

    Raises:
        ConfigError: they do not go together.
    """

    def __init__(
        self,
        schedule: Schedule,
        method: Method,
        num_stages: int,
        num_microbatches: int,
        segments: RecomputeSegments | None = None,
    ) -> None:
        self.schedule = schedule
        self.method = method
        self.num_stages = num_stages
        self.num_microbatches = num_microbatches
        self.segments = segments
        schedule.check(num_stages, num_microbatches)
        method.check(num_stages, num_microbatches)
        self.replicas = schedule.replicas(num_stages)
        if self.replicas.several:
            self._check_replicas()
        if segments is not None:
            self._check_leads(segments)
        self.contexts = [StageContext.under(schedule, r, num_stages, num_microbatches) for r in range(num_stages)]
        self.lists = lru_cache(maxsize=2)(self._make_lists)
        self.placement = schedule.placement(num_stages)
        # a process asks for the lists of its own stages, of stage 0 and of their neighbors
        kept = self.replicas.counts[0] + max(map(len, self.placement.stages_of)) * (1 + 2 * max(self.replicas.counts))
        self.worker_list = lru_cache(maxsize=kept)(self._make_worker_list)
        """(worker, number of minibatches) -> its list."""

    def divide_rates_by_delay(self, anneal_steps: int) -> None:
        """Divides the learning rate of each stage by its delay, as T1 does: by the largest staleness of a forward.

        Stages without a delay, all synchronous ones among them, keep their rates.

        Raises:
            ConfigError: the method scales rates itself, or draws its delays.
        """
        given, method = f"optimizer.lr_by_delay={anneal_steps}", self.method
        if any(method.learning_rate_scale(context, 0) != 1.0 for context in self.contexts):
            raise ConfigError(
                f"{given}: method={method.name} already scales the learning rate of each stage; leave it out, or turn "
                "that of the method off, such as by method.t1=false"
            )
        if method.simulated_only:
            raise ConfigError(
                f"{given}: the delays of method={method.name} are random; leave it out (method=hogwild method.t1=true "
                "divides by their mean)"
            )
        if self.schedule.synchronous:
            return
        self.contexts = [
            replace(context, rate_delay=max(1, self._age(context.stage)), anneal_steps=anneal_steps)
            for context in self.contexts
        ]

    def _age(self, stage: int) -> int:
        """Staleness of the weights that a forward of an asynchronous stage reads in the steady state."""
        at = self._read_context(stage, forward(_STEADY, 0), 0)
        return staleness(self.method.forward(at).version, at.update)

    @property
    def largest_staleness(self) -> int | None:
        """Largest staleness of a forward in the steady state, over all stages; None if the method draws its delays."""
        if self.method.simulated_only:
            return None
        return 0 if self.schedule.synchronous else max(map(self._age, range(self.num_stages)))

    def _check_replicas(self) -> None:
        if self.method.needs_even_replicas and not self.replicas.even:
            raise ConfigError(
                f"partition.replicas={list(self.replicas.counts)}: method={self.method.name} compares versions across "
                "stages, so all stages need the same replica count; method=pipedream and method=pipeoptim do not"
            )
        if self.segments is not None and self.segments != RecomputeSegments.of_single_stages(self.num_stages):
            raise ConfigError(
                f"train.recompute_boundaries with partition.replicas={list(self.replicas.counts)}: a stage with "
                "replicas recomputes on its own; train.recompute=true works"
            )

    def _check_leads(self, segments: RecomputeSegments) -> None:
        if self.list_schedule.synchronous:
            return  # whenever a recomputation starts, it reads the minibatch's own version
        whole = self.schedule.family is Family.WHOLE_BACKWARD  # recomputed just before its backward
        for r in range(self.num_stages):
            lead = segments.lead(r)
            room = 0 if whole else self.list_schedule.in_flight(r, self.num_stages, self.num_microbatches) - 1
            if lead > room:
                raise ConfigError(
                    f"train.recompute_boundaries: stage {r} would start recomputing {lead} microbatch steps early, but "
                    f"schedule={self.schedule.name} leaves room for {room} between forward and backward; start a "
                    "segment at each stage, or use a schedule with more microbatches in flight"
                )

    @cached_property
    def list_schedule(self) -> ListSchedule:
        """The schedule, if it has lists.

        Raises:
            ConfigError: torch's library runs it.
        """
        if not isinstance(self.schedule, ListSchedule):
            raise ConfigError(
                f"schedule={self.schedule.name} is run by torch.distributed.pipelining and has no operation list; "
                "schedule=gpipe and 1f1b_flush have one"
            )
        return self.schedule

    def _lead(self, stage: int) -> int:
        return self.segments.lead(stage) if self.segments is not None else 0

    @cached_property
    def _may_repeat(self) -> bool:
        """True if no list changes far from a drain, as one of a user's schedule or method might, or a random one."""
        each = self.schedule.each if isinstance(self.schedule, RoundRobin) else self.schedule
        return not (is_custom(each) or is_custom(self.method) or self.method.simulated_only)

    @property
    def _period(self) -> int:
        """Minibatches after which the list of every worker repeats."""
        return math.lcm(*self.replicas.counts)

    @cached_property
    def settled(self) -> int:
        """Number of minibatches in which a pipeline surely fills and drains: twice those before its lists repeat."""
        return 2 * (self.steady + self._period)

    def _repeating(
        self, make: Callable[[int], list[Item]], minibatches: int, moved: Callable[[Item, int], Item]
    ) -> Sequence[Item]:
        if not self._may_repeat:
            return make(minibatches)
        return repeating(make, minibatches, self.settled, self._period, moved)

    def _make_worker_list(self, worker: int, minibatches: int) -> Sequence[Operation]:
        make = partial(self._whole_list, worker)
        return self._repeating(make, minibatches, lambda op, turns: op.moved(turns * self._period))

    def _whole_list(self, worker: int, minibatches: int) -> list[Operation]:
        operations = self.list_schedule.of_worker(worker, self.num_stages, self.num_microbatches, minibatches)
        if self.segments is None:
            return operations
        return with_recomputation(operations, self.segments.lead(self.replicas.stage_of(worker)))

    def order(self, process: int, minibatches: int) -> Sequence[int]:
        """Stages of a process in the order in which it takes the operations of their lists."""
        stages = self.placement.stages_of[process]
        if len(stages) == 1:
            return list(stages) * len(self.worker_list(process, minibatches))
        return self._repeating(partial(self._whole_order, process), minibatches, lambda stage, _turns: stage)

    def _whole_order(self, process: int, minibatches: int) -> list[int]:
        order = self.list_schedule.order(process, self.num_stages, self.num_microbatches, minibatches)
        if self.segments is None:
            return order
        # a recomputation comes just before the operation that it precedes in the list of its stage
        lists = {r: iter(self._whole_list(r, minibatches)) for r in self.placement.stages_of[process]}
        recomputes = Kind.RECOMPUTATION
        return [r for r in order for _ in (*takewhile(lambda op: op.kind is recomputes, lists[r]), r)]

    def orders(self, minibatches: int) -> Orders | None:
        """The order of each process; None if each has one stage."""
        if not self.placement.several:
            return None
        return [self.order(process, minibatches) for process in range(self.placement.num_processes)]

    def steady_orders(self) -> list[list[tuple[int, Operation]]]:
        """(stage, operation) of each process in the steady state, from its last update of a minibatch to the next one.

        All minibatches are counted from that of the second update; empty if each process has one stage.
        """
        t = self.steady + 2
        orders = []
        for order, stages in zip(self.orders(2 * t + 1) or (), self.placement.stages_of, strict=False):
            lists = {r: iter(self.worker_list(r, 2 * t + 1)) for r in stages}
            operations = [(r, next(lists[r])) for r in order]
            last = max(operations.index((r, update(t))) for r in stages)
            before = operations.index((operations[last][0], update(t - 1)))
            orders.append([(r, op.moved(-t)) for r, op in operations[before + 1 : last + 1]])
        return orders

    def check_lists(self) -> None:
        """Validates the lists of all workers, for a number of minibatches that does not grow with deep pipelines.

        Raises:
            ScheduleError: no pipeline can carry them out.
        """
        self._make_lists(2 * min(self.steady, MOST_IN_FLIGHT) + max(self.replicas.counts))

    def _make_lists(self, minibatches: int) -> list[list[Operation]]:
        lists = [self._whole_list(worker, minibatches) for worker in range(self.replicas.num_workers)]
        validate(lists, self.num_microbatches, minibatches, self.segments, self.replicas, self.orders(minibatches))
        return lists

    def steady_cycle(self, stage: int) -> list[Operation]:
        """Operations of `stage` from one update to the next in steady state: see `ListSchedule.steady_cycle`."""
        cycle = self.list_schedule.steady_cycle(stage, self.num_stages, self.num_microbatches)
        return cycle if self.segments is None else steady_with_recomputation(cycle, self.segments.lead(stage))

    def planned(self, worker: int, minibatches: int, start: int = 0) -> Sequence[PlannedOperation]:
        """The list of a worker and what each of its operations reads, `start` minibatches into the run."""
        stage, period = self.replicas.stage_of(worker), self._period
        updates = period // self.replicas.counts[stage]

        def make(minibatches: int) -> list[PlannedOperation]:
            operations = self._whole_list(worker, minibatches)
            first = [self._whole_list(other, minibatches) for other in self.replicas.workers_of(0)]
            return planned_operations(self.contexts[stage], operations, first, self.method, self._lead(stage), start)

        return self._repeating(make, minibatches, lambda each, turns: each.moved(turns * period, turns * updates))

    @cached_property
    def steady(self) -> int:
        """The first minibatch, after a drain, of the steady state: the pipeline is full, and reads have their delay."""
        ages = [context.delay for context in self.contexts]
        if not (self.schedule.synchronous or self.method.simulated_only):  # whose delays are random
            ages = [max(age, self._age(r)) for r, age in enumerate(ages)]
        return max(age * context.replicas for age, context in zip(ages, self.contexts, strict=True))

    @property
    def decides_updates_together(self) -> bool:
        """True if clipping and loss scaling depend on the gradients of all stages; asynchronous stages decide alone."""
        return self.schedule.synchronous and self.replicas.even and not self.replicas.train_alone

    def check(self, stage: int, planned: PlannedOperation, newest: int, start: int) -> None:
        """Checks the weights that an operation of `stage` is about to read against the closed forms.

        Args:
            stage: r.
            planned: the operation and its read, counted from the last drain.
            newest: updates that the stage has made since then.
            start: minibatches of the run before then.

        Raises:
            InvariantError: by the closed forms of schedule and method it reads something else.
        """
        operation = planned.operation
        at = self._read_context(stage, operation, start)
        of_forward = None
        if operation.kind is not Kind.FORWARD:
            at_forward = self._read_context(stage, forward(operation.minibatch, operation.microbatch or 0), start)
            of_forward = query_method(self.method, at_forward, None)
        expected = query_method(self.method, at, of_forward)
        if newest != at.newest or planned.read != expected:
            raise InvariantError(
                f"stage {stage}: {operation} reads {planned.read} after {newest} updates, and by the formulas of "
                f"{self.schedule.name} and {self.method.name} it reads {expected} after {at.newest}"
            )

    def _read_context(self, stage: int, operation: Operation, start: int) -> ReadContext:
        return closed_form_context(self.list_schedule, self.contexts[stage], operation, self._lead(stage), start)


@dataclass(frozen=True)
class Phase:
    """Steps `start` to `end` - 1 of a run, under one schedule and one method; the pipeline drains before the next."""

    rules: PipelineRules
    start: int = 0
    end: int = sys.maxsize


def common_placement(schedules: Sequence[Schedule], num_stages: int) -> Placement:
    """Assignment of stages to processes.

    Raises:
        ConfigError: the phases differ; stages stay where they are.
    """
    first = schedules[0]
    for other in schedules[1:]:
        alike = isinstance(other, ListSchedule) == isinstance(first, ListSchedule)
        if not alike or other.placement(num_stages) != first.placement(num_stages):
            raise ConfigError(
                f"phases: schedule={first.name} and schedule={other.name} place stages in different processes, and "
                "stages cannot move; use schedules with the same placement, or resume a run with the second schedule"
            )
    return first.placement(num_stages)
