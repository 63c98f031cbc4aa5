"""Messages between the processes of stages that share weights: each tells the others its part of their gradients."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch.distributed as dist
from torch import Tensor

from pipetrain.executors.links import Links
from pipetrain.executors.p2p import Incoming, Outgoing
from pipetrain.executors.tied_gradients import TiedGradients, content, message
from pipetrain.models.ties import Tie
from pipetrain.stage.stage import Stage

_KEY = "tied"


class TiedMessages:
    """The parts of the stages of this process and of those elsewhere that share weights with them.

    Args:
        stages: of this process.
        process_of: stage -> its process.
        links: of this process.
    """

    def __init__(self, stages: Sequence[Stage], process_of: Callable[[int], int], links: Links) -> None:
        ties, here = stages[0].ties, [stage.index for stage in stages]
        rank, transport = dist.get_rank(), links.transport
        headers = transport.control_group() if ties else None
        self._gathered = TiedGradients(ties, here)
        self._names: dict[tuple[int, int], list[str]] = {}
        self._outgoing: dict[tuple[int, int], Outgoing] = {}
        self._incoming: dict[tuple[int, int], Incoming] = {}
        for a, b in _pairs(ties):
            source, target = process_of(a), process_of(b)
            if source == target:
                continue
            # every process makes all groups, in one order, as torch requires; one for each direction, as NCCL does
            payload = transport.new_group(sorted((source, target)))
            transport.connect(source, target, payload)
            assert headers is not None
            groups = links.groups(payload, headers)
            self._names[a, b] = [tie.name for tie in ties if {a, b} <= set(tie.stages)]
            if rank == source:
                link = links.to(target, b, groups)
                self._outgoing[a, b] = Outgoing(link, f"gradients of shared weights to stage {b}")
            elif rank == target:
                link = links.to(source, a, groups)
                self._incoming[a, b] = Incoming(link, f"gradients of shared weights from stage {a}")

    def offer(self, stage: Stage, gradients: Mapping[str, Tensor]) -> None:
        """Sends a stage's part to those elsewhere; does not wait."""
        self._gathered.offer(stage.index, gradients)
        for (a, b), outbox in self._outgoing.items():
            if a == stage.index:
                outbox.send(_KEY, message(stage, self._names[a, b], gradients))
        for (_, b), inbox in self._incoming.items():
            if b == stage.index:
                inbox.expect([_KEY])

    def totals(self, stage: Stage) -> dict[str, Tensor]:
        """Weight name -> sum over all stages that share it, once those of this process have offered theirs; waits."""
        for (a, b), inbox in self._incoming.items():
            if b == stage.index:
                self._gathered.offer_some(a, content(self._names[a, b], inbox.take()), self._names[a, b])
        for (a, _), outbox in self._outgoing.items():
            if a == stage.index:
                outbox.settle(0)
        return self._gathered.totals(stage.index)


def _pairs(ties: Sequence[Tie]) -> Iterator[tuple[int, int]]:
    """(from, to), once for all weights that two stages share, in one order everywhere."""
    yield from sorted({(a, b) for tie in ties for a in tie.stages for b in tie.stages if a != b})
