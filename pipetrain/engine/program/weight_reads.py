"""The query that a method answers: at this point of a run, which weights does this operation read?"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from pipetrain.engine.schedules.base import ListSchedule, Schedule
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.replicas import Replicas


class WeightTransform(Protocol):
    """A change of a version's weights that a method reads instead of the version itself; prints as a suffix of it.

    Subclasses are frozen dataclasses: reads with equal transforms read the same weights.

    Attributes:
        passes: how often each weight, or what it is changed by, is read or written for it; partitions count this.
        stashed: True if the changed weights are kept from F to B. Otherwise, what reads them later computes them again.
    """

    passes: ClassVar[int] = 3
    stashed: ClassVar[bool] = False

    @override
    def __str__(self) -> str: ...

    def apply(self, version: Any, weights: Any) -> dict[str, Any]:
        """Name -> new tensor; a weight that does not change may be left out, and is then read from the version.

        Args:
            version: a `pipetrain.engine.weights.versions.WeightVersion`.
            weights: the stage's `pipetrain.engine.weights.versions.Weights`.
        """


@dataclass(frozen=True, slots=True)
class WeightRead:
    """The weights that an operation reads: a version (counted from the last drain), changed by `transform` if any."""

    version: int
    transform: WeightTransform | None = None

    @override
    def __str__(self) -> str:
        return f"v{self.version}{self.transform or ''}"

    def held(self, kind: Kind) -> "WeightRead":
        """What must be in memory for an operation of this kind to read it: its version, or what F has stashed of it."""
        stashed = self.transform is not None and self.transform.stashed and kind is not Kind.FORWARD
        return self if stashed else WeightRead(self.version)

    def moved(self, by: int) -> "WeightRead":
        """The read with its version counted from elsewhere, such as from the start of the run."""
        return WeightRead(self.version + by, self.transform)


@dataclass(frozen=True, slots=True)
class StageContext:
    """Position of a stage in the pipeline, and its delay under a schedule.

    Attributes:
        stage, num_stages, num_microbatches: r, D and N.
        delay: largest number of updates between a minibatch's forward on this stage and the update with its gradient.
        entry_delay: the same number of stage 0.
        workers: the replicas of each stage; None: one of each.
        rate_scale: factor of the stage's learning rate for its replicas.
        rate_delay: τ by which T1 divides the rate, if `anneal_steps` is set.
        anneal_steps: K of T1, in steps of the phase; None for no T1, or if the method has its own.
    """

    stage: int
    num_stages: int
    num_microbatches: int
    delay: int
    entry_delay: int
    workers: Replicas | None = None
    rate_scale: float = 1.0
    rate_delay: int = 1
    anneal_steps: int | None = None

    @classmethod
    def under(cls, schedule: Schedule, r: int, D: int, N: int) -> "StageContext":
        """The context of stage r."""
        delay, entry_delay = schedule.delay(r, D, N), schedule.delay(0, D, N)
        return cls(r, D, N, delay, entry_delay, schedule.replicas(D), schedule.rate_scale(r))

    @property
    def replicas(self) -> int:
        """Number of workers of the stage."""
        return self.workers.counts[self.stage] if self.workers is not None else 1

    def rate_factor(self, update: int) -> float:
        """Factor of the stage's learning rate at an update of the phase, apart from the method's."""
        if self.anneal_steps is None:
            return self.rate_scale
        return t1_lr_scale(self.rate_delay, update, self.anneal_steps) * self.rate_scale

    def update_of(self, minibatch: int) -> int:
        """Updates of the stage before the one with the minibatch's gradient; all count from the last drain."""
        return minibatch // self.replicas


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Knowledge of a stage when it starts an operation other than U; all of it is known before the run.

    Attributes:
        operation: the operation about to start; its minibatch counts from the last drain.
        newest: updates that the stage has made since the last drain.
        entry: the newest version on stage 0 when this microbatch's forward started there.
        updates_until_backward: updates that the stage makes between the microbatch's forward and its backward.
        minibatch_of_run: the operation's minibatch, counted from the start of the run.
        lead: microbatch steps between a recomputation on this stage and its backward. PipeMare alone asks: its
            recomputation corrects the weights by as many updates as the forward is behind the recomputation.
    """

    context: StageContext
    operation: Operation
    newest: int
    entry: int
    updates_until_backward: int
    minibatch_of_run: int
    lead: int = 0

    @property
    def update(self) -> int:
        """Updates that the stage makes before the one with the minibatch's gradient: t, one for each round of R."""
        return self.context.update_of(self.operation.minibatch)


class ReadPolicy(Protocol):
    """The part of a method that needs no tensors: which weights an operation reads."""

    def forward(self, at: ReadContext) -> WeightRead:
        """The weights that F reads."""

    def recomputation(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        """The weights that R reads, given what its F read."""

    def backward(self, at: ReadContext, forward: WeightRead) -> WeightRead:
        """The weights that B reads, given what its F read."""


def query_method(policy: ReadPolicy, at: ReadContext, forward: WeightRead | None) -> WeightRead:
    """Weights that the operation of `at` reads under `policy`; `forward` is the read of its F, None if it is the F.

    W reads what its B read: the stage makes no update between them.
    """
    if at.operation.kind is Kind.FORWARD:
        return policy.forward(at)
    assert forward is not None, f"{at.operation} before its forward"
    ask = policy.recomputation if at.operation.kind is Kind.RECOMPUTATION else policy.backward
    return ask(at, forward)


def closed_form_context(
    schedule: ListSchedule, context: StageContext, op: Operation, lead: int = 0, start: int = 0
) -> ReadContext:
    """The context of an operation by the schedule's closed forms, not off its list: what ran is held against it."""
    r, D, N = context.stage, context.num_stages, context.num_microbatches
    t, j = op.minibatch, op.microbatch or 0
    own = context.update_of(t)
    at_forward = schedule.newest_at_forward(r, D, N, t, j)
    if op.kind is Kind.FORWARD:
        newest = at_forward
    elif op.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
        newest = own
    else:
        newest = own if schedule.synchronous else max(0, (own * N + j - lead) // N)
    entry = schedule.newest_at_forward(0, D, N, t, j)
    return ReadContext(context, op, newest, entry, own - at_forward, start + t, lead)


def t1_lr_scale(delay: float, update: int, anneal_steps: int) -> float:
    """T1: what the learning rate is multiplied by, delay^-p with p = 1 - min(k/K, 1) (PipeMare § 3.1)."""
    return float(delay ** (min(update / anneal_steps, 1.0) - 1.0))


def staleness(version: int, update: int) -> int:
    """Updates between the version read and update `update`, which is the minibatch's own."""
    return update - version
