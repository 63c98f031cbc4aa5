"""Gradients of a weight that several stages hold: each stage gets the sum of all, added in the order of the stages."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.device_queue import numbers
from pipetrain.engine.executors.messages.links import LinkGroups, Links
from pipetrain.engine.executors.messages.p2p import Incoming, Outgoing
from pipetrain.engine.models.ties import Tie
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.tensors import Tensors


class Part(NamedTuple):
    """A stage's part of the gradient of a weight.

    Attributes:
        gradient: None if the minibatch has none; zeros as long as only `there` knows.
        there: flag of its presence, which a device may have yet to receive; None if it is known.
    """

    gradient: Tensor | None
    there: Tensor | None = None


@dataclass
class TiedGradients:
    """Parts that stages have offered for an update, until every stage that shares the weight has taken the sum.

    `takers` are the stages that take the sums here.
    """

    ties: Sequence[Tie]
    takers: Collection[int]
    _offered: dict[str, dict[int, Part]] = field(default_factory=dict)
    _taken: Counter[str] = field(default_factory=Counter)

    def of(self, stage: int) -> list[Tie]:
        """Ties that a stage takes part in."""
        return [tie for tie in self.ties if stage in tie.stages]

    def offer(self, stage: int, gradients: Mapping[str, Tensor]) -> None:
        """Takes a stage's part: weight name -> gradient; a weight that its minibatch did not touch has none."""
        self.offer_parts(stage, {tie.name: Part(gradients.get(tie.name)) for tie in self.of(stage)})

    def offer_parts(self, stage: int, parts: Mapping[str, Part]) -> None:
        """Takes a stage's part of these weights alone."""
        for name, part in parts.items():
            self._offered.setdefault(name, {})[stage] = part

    def take(self, stage: int) -> dict[str, Tensor] | None:
        """Weight name -> sum in new memory; weights without a gradient in any stage are absent.

        None while another stage has yet to offer a part that this stage waits for.
        """
        if any(len(self._offered.get(tie.name, ())) < len(tie.stages) for tie in self.of(stage)):
            return None
        self._look_at_flags([tie.name for tie in self.of(stage)])
        totals = {tie.name: self._take(tie) for tie in self.of(stage)}
        return {name: total for name, total in totals.items() if total is not None}

    def _take(self, tie: Tie) -> Tensor | None:
        """The sum of the parts of all stages, which are dropped once the last stage here takes it."""
        parts = [self._offered[tie.name][r] for r in tie.stages]
        gradients = [part.gradient for part in parts if part.gradient is not None]
        self._taken[tie.name] += 1
        if self._taken[tie.name] == sum(r in self.takers for r in tie.stages):
            del self._offered[tie.name], self._taken[tie.name]
        if not gradients:
            return None
        total = gradients[0].clone()
        for gradient in gradients[1:]:
            total.add_(gradient)
        return total

    def _look_at_flags(self, names: Sequence[str]) -> None:
        """Drops gradients that are not there; the host waits once for the flags of all."""
        offered = [(name, stage, *part) for name in names for stage, part in self._offered[name].items()]
        unknown = [(name, stage, gradient, there) for name, stage, gradient, there in offered if there is not None]
        flags = numbers([there for *_, there in unknown])
        for (name, stage, gradient, _), there in zip(unknown, flags, strict=True):
            self._offered[name][stage] = Part(gradient if there else None)


def encode_parts(stage: Stage, names: Sequence[str], gradients: Mapping[str, Tensor]) -> Tensors:
    """The gradients of weights as one message: flags of their presence, then one tensor for each weight."""
    there = torch.ones(len(names), dtype=torch.bool, device=stage.device)
    for flag, name in zip(there, names, strict=True):
        if name not in gradients:
            flag.zero_()  # the copy of a list to the device would wait
    weights = {stage.full_names[local]: weight for local, weight in stage.weights.newest.tensors.items()}
    return there, *(gradients[name] if name in gradients else torch.zeros_like(weights[name]) for name in names)


def decode_parts(names: Sequence[str], received: Tensors) -> dict[str, Part]:
    """The parts in such a message, by weight name."""
    there, *gradients = received
    return {name: Part(each, flag) for name, each, flag in zip(names, gradients, there, strict=True)}


_TIED_KEY = "tied"


class TiedMessages(TiedGradients):
    """Sums over the stages of this process and of those elsewhere that share weights with them."""

    def __init__(self, stages: Sequence[Stage], process_of: Callable[[int], int], links: Links) -> None:
        ties = stages[0].ties
        self._links = links
        self._stages = {stage.index: stage for stage in stages}
        super().__init__(ties, list(self._stages))
        self._sharing = [r for r in self._stages if self.of(r)]
        self._ready: set[int] = set()
        """Stages of this process that have offered their parts for an update."""
        self._left = len(self._sharing)
        """Number of stages of this process that have yet to take its sums."""
        rank, transport = dist.get_rank(), links.transport
        self._names: dict[tuple[int, int], list[str]] = {}
        self._outgoing: dict[tuple[int, int], Outgoing] = {}
        self._incoming: dict[tuple[int, int], Incoming] = {}
        # every process makes all groups, in one order, as torch requires; one for each direction, as NCCL does
        for a, b in sorted({pair for tie in ties for pair in permutations(tie.stages, 2)}):
            source, target = process_of(a), process_of(b)
            ends = sorted({source, target})
            if len(ends) == 1:
                continue
            payload = transport.new_group(ends)
            # each link counts its headers by itself
            groups = LinkGroups(payload, transport.control_group(ends) if transport.direct else payload)
            transport.connect(source, target, groups.payload, groups.headers)
            self._names[a, b] = [tie.name for tie in ties if {a, b} <= set(tie.stages)]
            what = "gradients of shared weights"
            if rank == source:
                self._outgoing[a, b] = Outgoing(links.to(target, b, groups), f"{what} to stage {b}")
            elif rank == target:
                self._incoming[a, b] = Incoming(links.to(source, a, groups), f"{what} from stage {a}")

    @override
    def offer(self, stage: int, gradients: Mapping[str, Tensor]) -> None:
        """Takes a stage's part, and sends it to those elsewhere; does not wait."""
        super().offer(stage, gradients)
        self._ready.add(stage)
        for (a, b), outbox in self._outgoing.items():
            if a == stage:
                outbox.send(_TIED_KEY, encode_parts(self._stages[stage], self._names[a, b], gradients))
        for (_, b), inbox in self._incoming.items():
            if b == stage:
                inbox.expect([_TIED_KEY])

    @override
    def take(self, stage: int) -> dict[str, Tensor] | None:
        """As in one process; waits for the parts of stages elsewhere.

        None while another stage of this process has yet to offer its part, which another process may wait for. The one
        that takes last waits until all parts have been taken elsewhere, too.
        """
        if stage not in self._sharing:
            return {}
        if not self._ready.issuperset(self._sharing):
            return None
        for (a, b), inbox in self._incoming.items():
            if b == stage:
                self.offer_parts(a, decode_parts(self._names[a, b], inbox.take()))
                self._links.catch_up(f"gradients of shared weights from stage {a}")  # whose flags are read below
        self._left -= 1
        if not self._left:
            self._left = len(self._sharing)
            self._ready.clear()
            for outbox in self._outgoing.values():
                outbox.settle(0)
        totals = super().take(stage)
        assert totals is not None, "all parts are there"
        return totals
