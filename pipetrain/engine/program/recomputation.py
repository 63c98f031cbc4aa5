"""Adds recomputation to operation lists: which forwards are repeated, when, and from whose stored input."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pipetrain.engine.schedules.operation import Kind, Operation


@dataclass(frozen=True)
class RecomputeSegments:
    """Grouping of stages that recompute together: a segment stores only its first stage's input (PipeMare app. A.3, D).

    The stages of a segment recompute in sequence, stage i of L starting 2(L-1-i) microbatch steps before its
    backward, so that the repeated activations arrive when the backward does.
    """

    firsts: tuple[int, ...]
    """The first stage of every segment, ascending from 0."""
    num_stages: int

    @classmethod
    def of_single_stages(cls, num_stages: int) -> "RecomputeSegments":
        """Every stage recomputes on its own, just before its backward."""
        return cls(tuple(range(num_stages)), num_stages)

    def begins(self, r: int) -> bool:
        """True if stage r recomputes from its own stored input."""
        return self.firsts[bisect_right(self.firsts, r) - 1] == r

    def ends(self, r: int) -> bool:
        """True if no stage recomputes from stage r's repeated outputs."""
        return self.lead(r) == 0

    def lead(self, r: int) -> int:
        """Microbatch steps between a recomputation on stage r and its backward."""
        after = bisect_right(self.firsts, r)
        behind = self.firsts[after] if after < len(self.firsts) else self.num_stages
        return 2 * (behind - 1 - r)


def with_recomputation(operations: Sequence[Operation], lead: int) -> list[Operation]:
    """The list with an R for every B, `lead` backwards before it, or as soon after that as its F has ended."""
    listed: list[Operation] = []
    backwards = [op for op in operations if op.kind is Kind.BACKWARD]
    started: set[tuple[int, int | None]] = set()
    done = repeated = 0
    for op in operations:
        if op.kind is Kind.FORWARD:
            started.update({(op.minibatch, op.microbatch), (op.minibatch, None)})
        if op.kind is Kind.BACKWARD:
            for other in backwards[repeated : done + lead + 1]:
                if (other.minibatch, other.microbatch) not in started:
                    break
                listed.append(other.like(Kind.RECOMPUTATION))
                repeated += 1
            done += 1
        listed.append(op)
    return listed


def steady_with_recomputation(cycle: Sequence[Operation], lead: int) -> list[Operation]:
    """A steady cycle (`ListSchedule.steady_cycle`) with an R for every B; an R may be of a later minibatch, too."""
    turns = lead // sum(op.kind is Kind.BACKWARD for op in cycle) + 3
    forwards = [op for op in cycle if op.kind is Kind.FORWARD]
    begun = [op.moved(t - op.minibatch) for op in forwards for t in range(min(op.minibatch, turns))]
    operations = with_recomputation([*begun, *(op.moved(t) for t in range(turns) for op in cycle)], lead)
    first, second, *_ = (i for i, op in enumerate(operations) if op.kind is Kind.UPDATE)
    return [op.moved(-1) for op in operations[first + 1 : second + 1]]


def sender_of(op: Operation, r: int, num_stages: int, segments: RecomputeSegments | None) -> int | None:
    """The stage whose operation of the same name stage r waits for; None if it waits for none.

    F needs the F of the same microbatch one stage before, B its B one stage later, and R the R of the stage before if
    that stage is in the same segment.
    """
    if op.kind is Kind.FORWARD and r > 0:
        return r - 1
    if op.kind is Kind.BACKWARD and r < num_stages - 1:
        return r + 1
    if op.kind is Kind.RECOMPUTATION and segments is not None and not segments.begins(r):
        return r - 1
    return None
