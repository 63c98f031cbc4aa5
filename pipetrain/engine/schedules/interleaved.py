"""Interleaved 1F1B: each process has every P-th stage, so that filling the pipeline takes less time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.operation import backward, forward, update
from pipetrain.engine.schedules.process_lists import DrainedProcessSchedule, Looped, StageOperation


@dataclass(frozen=True)
class _Rounds:
    """The order of the microbatches that pass `chunks` stages of each of P processes, P microbatches at a time.

    A round is P microbatches through the first chunk (the first stages of all processes), then through the second, and
    so on: `processes` · `chunks` steps. Backwards take the chunks in reversed order.
    """

    processes: int
    chunks: int

    def warm_up(self, p: int) -> int:
        """Forwards of process p before its first pair of a forward and a backward."""
        return 2 * (self.processes - 1 - p) + (self.chunks - 1) * self.processes

    def place(self, step: int) -> tuple[int, int]:
        """(chunk, microbatch) of a step."""
        of_round, rest = divmod(step, self.processes * self.chunks)
        chunk, j = divmod(rest, self.processes)
        return chunk, of_round * self.processes + j

    def step(self, chunk: int, microbatch: int) -> int:
        """The inverse of `place`."""
        of_round, j = divmod(microbatch, self.processes)
        return (of_round * self.chunks + chunk) * self.processes + j

    def done(self, chunk: int, steps: int) -> int:
        """Microbatches that have passed a chunk after so many steps."""
        rounds, rest = divmod(max(0, steps), self.processes * self.chunks)
        return rounds * self.processes + min(max(0, rest - chunk * self.processes), self.processes)

    def forwards_and_backwards(self, p: int, N: int, M: int) -> Iterator[StageOperation]:
        """The list of process p for M minibatches, without updates; see `one_forward_one_backward`."""
        warm_up, total = self.warm_up(p), M * N * self.chunks
        for step in range(total + warm_up):
            if step < total:
                chunk, k = self.place(step)
                yield chunk * self.processes + p, forward(*divmod(k, N))
            if 0 <= step - warm_up < total:
                chunk, k = self.place(step - warm_up)
                yield (self.chunks - 1 - chunk) * self.processes + p, backward(*divmod(k, N))


class _Interleaved(Looped):
    """Base of the drained and the continuous form."""

    for_one: ClassVar[str] = "schedule=1f1b_flush and 1f1b have one"

    @override
    def check(self, D: int, N: int) -> None:
        """Microbatches go in rounds of P."""
        super().check(D, N)
        if N % (P := D // self.chunks):
            near = [count for count in (N // P * P, (N // P + 1) * P) if count]
            raise ConfigError(
                f"train.microbatches={N}: schedule={self.name} on {P} processes takes a multiple of {P}; "
                f"train.microbatches={' or '.join(map(str, near))} works"
            )

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """Its forwards before its first backward: min(P, x) + min(P, max(0, x - vP)).

        x = 2(P-1-p) + 1 + 2mP, where m of the v chunks come after that of the stage.
        """
        rounds, p, chunk = self._rounds_of(r, D)
        return rounds.done(chunk, rounds.warm_up(p) + (self.chunks - 1 - chunk) * rounds.processes + 1)

    def _rounds_of(self, r: int, D: int) -> tuple[_Rounds, int, int]:
        """The rounds, and the process and chunk of a stage."""
        P = D // self.chunks
        return _Rounds(P, self.chunks), r % P, r // P


@dataclass(frozen=True)
class Interleaved1F1B(_Interleaved, DrainedProcessSchedule):
    """1F1B over several stages per process, drained for each minibatch (Narayanan et al. 2021, *Megatron-LM*, § 2.2).

    Attributes:
        chunks: v, the stages of each process: r, r + P, and so on. Filling and draining idle (P-1)/v of a minibatch's
            N microbatches, against P-1 under 1F1B; there are v times as many messages.
    """

    name: ClassVar[str] = "interleaved_1f1b"
    chunks: int = 2

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        return min(N, super().in_flight(r, D, N))

    @override
    def of_minibatch(self, p: int, D: int, N: int) -> Iterator[StageOperation]:
        """Warm-up, a forward and a backward in turn, drain.

        With D = 4, v = 2, N = 4 and equal durations, minibatch 0 is (capitals: stages 2 and 3)::

            stages 0 and 2  f0 f1 F0 F1 f2 B0 f3 B1 F2 b0 F3 b1 .  B2 .  B3 b2 b3
            stages 1 and 3  .  f0 f1 F0 B0 F1 B1 f2 b0 f3 b1 F2 B2 F3 B3 b2 b3
        """
        return _Rounds(D // self.chunks, self.chunks).forwards_and_backwards(p, N, 1)


@dataclass(frozen=True)
class InterleavedContinuous1F1B(_Interleaved):
    """Interleaved 1F1B that fills once: the same order over the microbatches of all minibatches.

    Each stage updates after its own N-th backward of a minibatch.

    Attributes:
        chunks: v, the stages of each process: r, r + P, and so on.
    """

    name: ClassVar[str] = "interleaved_1f1b_continuous"
    family: ClassVar[Family] = Family.CONTINUOUS
    chunks: int = 2

    @override
    def of_process(self, p: int, D: int, N: int, M: int) -> Iterator[StageOperation]:
        """As `interleaved_1f1b` for one minibatch of MN microbatches, with updates in between."""
        last = {backward(t, N - 1): update(t) for t in range(M)}
        for stage, op in _Rounds(D // self.chunks, self.chunks).forwards_and_backwards(p, N, M):
            yield stage, op
            if op in last:
                yield stage, last[op]

    @override
    def newest_at_forward(self, r: int, D: int, N: int, t: int, j: int) -> int:
        """Backwards of the stage in the steps of its process before F(t, j), less the warm-up; N to an update."""
        rounds, p, chunk = self._rounds_of(r, D)
        return rounds.done(self.chunks - 1 - chunk, rounds.step(chunk, t * N + j) - rounds.warm_up(p)) // N

    @override
    def delay(self, r: int, D: int, N: int) -> int:
        """That of F(t, 0), once the pipeline is full: the largest, as each forward comes with one backward at most."""
        t = 2 * self.chunks
        return t - self.newest_at_forward(r, D, N, t, 0)
