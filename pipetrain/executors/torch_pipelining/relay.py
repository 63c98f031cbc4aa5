"""Carries microbatches forward through stages in several processes, one stage after the other."""

from collections.abc import Callable, Sequence

import torch.distributed as dist

from pipetrain.executors.hooks import Around
from pipetrain.executors.links import Links
from pipetrain.executors.p2p import Incoming, Key, Outgoing
from pipetrain.executors.transport import Transport
from pipetrain.schedules import Placement
from pipetrain.stage.stage import Stage
from pipetrain.tensors import Tensors

Compute = Callable[[Stage, Tensors], Tensors]
"""(a stage of this process, its inputs) -> its outputs."""

_AHEAD = 2


class Relay:
    """The way of a microbatch where a process has several stages; for evaluations and for finding shapes.

    One link for each direction between two processes: all go over it in the order of the microbatches, then of the
    stages, which both ends know.

    Args:
        stages: of this process; messages between them go through host memory.
        placement: of all stages.
        waiting: a context around every wait for another process.
    """

    def __init__(self, stages: Sequence[Stage], placement: Placement, waiting: Around) -> None:
        self._stages = stages
        self._last = sum(map(len, placement.stages_of)) - 1
        self._placement = placement
        self._rank = dist.get_rank()
        links = Links(Transport(stages[0].device), waiting)
        group = links.transport.new_group()
        groups = links.groups(group, group)
        self._incoming: dict[int, Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        for stage in stages:
            if (peer := self._elsewhere(stage.index - 1)) is not None:
                self._incoming[peer] = Incoming(
                    links.to(peer, stage.index - 1, groups), f"activations from {placement.name(peer)}"
                )
            if (peer := self._elsewhere(stage.index + 1)) is not None:
                self._outgoing[peer] = Outgoing(
                    links.to(peer, stage.index + 1, groups), f"activations to {placement.name(peer)}"
                )

    def _elsewhere(self, stage: int) -> int | None:
        """The process of a stage, None where it is this one or there is no such stage."""
        if not 0 <= stage <= self._last:
            return None
        process = self._placement.process_of(stage)
        return None if process == self._rank else process

    def carry(self, key: Key, inputs: Callable[[], Tensors], compute: Compute) -> Tensors:
        """One microbatch through all stages; the outputs of the last one of this process.

        Args:
            key: what decides the shapes of its messages.
            inputs: called where the first stage is.
            compute: called for each stage of this process.
        """
        tensors: Tensors = ()
        for stage in self._stages:
            source, sink = self._elsewhere(stage.index - 1), self._elsewhere(stage.index + 1)
            if stage.index == 0:
                tensors = inputs()
            elif source is not None:
                self._incoming[source].expect([_at(key, stage.index)])
                tensors = self._incoming[source].take()
            tensors = compute(stage, tensors)
            if sink is not None:
                self._outgoing[sink].send(_at(key, stage.index + 1), tensors)
                self._outgoing[sink].settle(_AHEAD)
        return tensors

    def end(self) -> None:
        """Waits until the others have taken everything."""
        for outbox in self._outgoing.values():
            outbox.settle(0)


def _at(key: Key, stage: int) -> Key:
    """The key of the messages to a stage: those of other stages have other shapes."""
    return None if key is None else (key, stage)
