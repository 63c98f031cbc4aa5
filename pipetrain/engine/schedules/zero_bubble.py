"""Zero-bubble schedules: backwards are split, and gradients of weights fill the bubble (Qi et al. 2023)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from pipetrain.engine.schedules.base import Family, ListSchedule
from pipetrain.engine.schedules.operation import Kind, Operation, backward, forward, update, weight_gradient
from pipetrain.engine.schedules.process_lists import DrainedProcessSchedule, StageOperation, VShaped

F, B, W = Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT_GRADIENT


@dataclass(frozen=True)
class ZBH1(ListSchedule):
    """ZB-H1: 1F1B in which stage r runs each W r backwards later, so that all stages hold D activations at most.

    The bubble is (D-1)(F + B - W), against (D-1)(F + B + W) under 1F1B (Qi et al. 2023, *Zero Bubble Pipeline
    Parallelism*, § 2.1).
    """

    name: ClassVar[str] = "zb_h1"
    family: ClassVar[Family] = Family.SYNCHRONOUS
    splits_backward: ClassVar[bool] = True

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        """min(N, D - r) microbatches; r more wait for their W."""
        return min(N, D - r)

    @override
    def operations(self, r: int, D: int, N: int, M: int) -> list[Operation]:
        """Warm-up, then F, B and the W of r backwards before in turn, drain.

        With D = 3, N = 4 and equal durations, minibatch 0 is::

            stage 0  F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
            stage 1  .  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
            stage 2  .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
        """
        listed = [
            kind(0, j + ahead)
            for j in range(r + 1 - D, N + r)
            for kind, ahead in ((forward, D - 1 - r), (backward, 0), (weight_gradient, -r))
            if 0 <= j + ahead < N
        ]
        return [op.moved(t) for t in range(M) for op in (*listed, update(0))]


@dataclass(frozen=True)
class ZBV(VShaped, DrainedProcessSchedule):
    """ZB-V: process p has stages p and D - 1 - p, and idles at the ends of a minibatch only, if N >= D - 1.

    This needs F, B and W of equal durations (Qi et al. 2023, § 6; 2024, *Pipeline Parallelism with Controllable
    Memory*). All processes hold as many activations as the first under 1F1B.
    """

    name: ClassVar[str] = "zb_v"
    splits_backward: ClassVar[bool] = True

    @override
    def in_flight(self, r: int, D: int, N: int) -> int:
        return min(N, D - r)

    @override
    def of_minibatch(self, p: int, D: int, N: int) -> Iterator[StageOperation]:
        """The list for D - 1 microbatches or more, cut to those that there are.

        With D = 4, N = 4 and equal durations, minibatch 0 is (capitals: stages 2 and 3)::

            stages 0 and 3  f0 f1 f2 F0 B0 W0 F1 B1 W1 f3 b0 w0 F2 B2 W2 b1 w1 F3 B3 W3 b2 w2 b3 w3
            stages 1 and 2  .  f0 F0 f1 F1 B0 W0 f2 b0 w0 F2 B1 W1 f3 b1 w1 F3 B2 W2 b2 B3 b3 w2 W3 w3
        """
        P, near, far, done = D // 2, p, D - 1 - p, Counter[tuple[int, Kind]]()
        for step in (
            *[(near, F)] * (D - 1 - 2 * p),
            *[(far, F), (near, F)] * p,
            *[(far, F), (far, B), (far, W)] * (P - p),
            *[(near, F), (near, B), (near, W), (far, F), (far, B), (far, W)] * (max(D - 1, N) - P),
            *[(near, B), (far, B)] * p,
            *[(near, B), (near, W)] * (P - p),
            *[(far, W)] * p,
            *[(near, W)] * p,
        ):
            if done[step] < N:
                yield step[0], Operation(step[1], 0, done[step])
            done[step] += 1
