"""Buckets of gradients, which travel together between the replicas of a stage."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.executors.exchange import connected
from pipetrain.executors.rounds import mean_in_first
from pipetrain.executors.transport import Transport

_BYTES = 2**23
"""Of gradients that travel together: few enough messages, and the first leave early."""


@dataclass(eq=False)
class Bucket:
    """Some weights whose gradients travel together.

    Attributes:
        weights: name -> weight.
        own: what this replica sends, and in the end the means: the gradients in the memory order of the weights, then
            for each weight whether there is one. Replica i sums the i-th of as many stretches.
        others: the stretch that this replica sums, of every replica.
        transport: of the run.
        missing: names without a gradient yet.
        work: the exchange under way.
    """

    weights: dict[str, Tensor]
    own: Tensor
    others: Tensor
    transport: Transport
    missing: set[str] = field(default_factory=set)
    work: dist.Work | None = None

    @classmethod
    def of(cls, weights: dict[str, Tensor], count: int, transport: Transport) -> "Bucket":
        """One for weights of one dtype, between `count` replicas."""
        size = sum(weight.numel() for weight in weights.values()) + len(weights)
        dtype = next(iter(weights.values())).dtype
        length, device = -(-size // count) * count, transport.buffers
        own, others = (torch.zeros(length, dtype=dtype, device=device) for _ in range(2))
        return cls(weights, own, others, transport)

    def views(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, the gradient and whether there is one, as memory of `own`."""
        start, flags = 0, self.flags
        for index, (name, weight) in enumerate(self.weights.items()):
            yield name, self.own.as_strided(weight.shape, weight.stride(), start), flags[index]
            start += weight.numel()

    @property
    def flags(self) -> Tensor:
        """For each weight whether there is a gradient, as memory of `own`; of means, by how many replicas."""
        first = sum(weight.numel() for weight in self.weights.values())
        return self.own[first : first + len(self.weights)]

    def begin(self) -> None:
        """Begins a round."""
        self.missing, self.work = set(self.weights), None

    def collect(self, group: dist.ProcessGroup) -> None:
        """Begins to send each replica the stretch that it sums."""
        with connected(direct=self.transport.direct):
            self.work = dist.all_to_all_single(self.others, self.own, group=group, async_op=True)

    def wait(self) -> None:
        """Waits for the exchange under way; has the device wait where its own memory travels."""
        assert self.work is not None, "no exchange has begun"
        with connected(direct=self.transport.direct):
            self.work.wait()

    def spread(self, contributing: int, group: dist.ProcessGroup) -> None:
        """Sums this replica's stretch over the first so many replicas, and begins to send it to all."""
        self.wait()
        stretches = self.others.chunk(dist.get_world_size(group))
        total = mean_in_first(stretches[:contributing])
        for stretch in stretches[1:]:
            stretch.copy_(total)
        with connected(direct=self.transport.direct):
            self.work = dist.all_to_all_single(self.own, self.others, group=group, async_op=True)


def portions(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The weights from the last layer on, which a backward finds the gradients of first, a bucket at a time."""
    portion: dict[str, Tensor] = {}
    size = 0
    for name, weight in reversed([*weights.items()]):
        same = not portion or next(iter(portion.values())).dtype == weight.dtype
        if portion and (not same or size + weight.nbytes > _BYTES):
            yield portion
            portion, size = {}, 0
        portion[name] = weight
        size += weight.nbytes
    if portion:
        yield portion
