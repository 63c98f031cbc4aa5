"""The mean gradient of a stage's replicas: one order of summation wherever they are, buckets where they are apart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.executors import exchange
from pipetrain.executors.exchange import connected
from pipetrain.executors.hooks import Around
from pipetrain.executors.p2p import NEVER
from pipetrain.losses import StepLoss
from pipetrain.schedules import Replicas

_BUCKET_BYTES = 2**23
"""Of gradients that travel together: few enough messages, and the first leave early."""


@dataclass(frozen=True)
class Round:
    """The minibatches of one update of a stage, one on each of its first replicas.

    Attributes:
        first: the first of them, counted from the last drain.
        count: how many; fewer than the stage has replicas where a drain cut the round short.
    """

    first: int
    count: int

    @classmethod
    def ending(cls, replicas: Replicas, stage: int, last: int) -> "Round":
        """The round of a stage whose last minibatch is `last`."""
        first = replicas.round_of(stage, last) * replicas.counts[stage]
        return cls(first, last + 1 - first)

    def own(self, replica: int) -> int | None:
        """The minibatch of a replica; None where it has none."""
        return self.first + replica if replica < self.count else None


@dataclass(frozen=True)
class Offer:
    """What a replica has found in a round.

    Attributes:
        gradients: name -> sum over the microbatches; a weight that its minibatch did not touch has none.
        losses: that of its minibatch, on the last stage and if it has one.
    """

    gradients: Mapping[str, Tensor]
    losses: Sequence[StepLoss] = ()


@dataclass(frozen=True)
class Found:
    """What the replicas of a stage have found together.

    Attributes:
        gradients: name -> mean over the minibatches of the round.
        losses: of these minibatches in order, on the last stage.
    """

    gradients: dict[str, Tensor]
    losses: list[StepLoss]


def mean_in_first(parts: Sequence[Tensor]) -> Tensor:
    """The mean, in the memory of the first part; summed in their order, so it has the same bits in any buckets."""
    total = parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total.div_(len(parts)) if len(parts) > 1 else total


class GatheredRounds:
    """The rounds of one stage whose replicas are all in this process.

    Args:
        weights: name -> weight, in whose memory order gradients are summed.
        count: R.
    """

    def __init__(self, weights: Mapping[str, Tensor], count: int) -> None:
        self._weights = _layouts(weights)
        self._offers: dict[int, dict[int, Offer]] = {}
        self._taken: dict[int, int] = {}
        self._count = count

    def offer(self, this: Round, replica: int, found: Offer) -> None:
        """Takes a replica's part; also of one without a minibatch, which waits for the others."""
        self._offers.setdefault(this.first, {})[replica] = found

    def complete(self, this: Round) -> bool:
        """Whether all replicas have come to the end of the round."""
        return len(self._offers.get(this.first, ())) == self._count

    def take(self, this: Round) -> Found:
        """What they have found, in memory of its own for each that asks; each does once."""
        offers = [self._offers[this.first][replica] for replica in range(this.count)]
        gradients = {
            name: mean_in_first(_laid_out(offers, name, layout))
            for name, layout in self._weights.items()
            if any(name in offer.gradients for offer in offers)
        }
        self._taken[this.first] = self._taken.get(this.first, 0) + 1
        if self._taken[this.first] == self._count:
            del self._offers[this.first], self._taken[this.first]
        return Found(gradients, [loss for offer in offers for loss in offer.losses])


def _layouts(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors without memory, which keep no version of the weights alive."""
    return {name: torch.empty_like(weight, device="meta") for name, weight in weights.items()}


def _laid_out(offers: Sequence[Offer], name: str, layout: Tensor) -> list[Tensor]:
    """The gradients of a weight in its memory order; zeros where there is none."""
    given = next(offer.gradients[name] for offer in offers if name in offer.gradients)
    parts = [torch.zeros_like(layout, device=given.device) for _ in offers]
    for part, offer in zip(parts, offers, strict=True):
        if name in offer.gradients:
            part.copy_(offer.gradients[name])
    return parts


@dataclass(eq=False)
class _Bucket:
    """Some weights whose gradients travel together.

    Attributes:
        weights: name -> weight.
        own: what this replica sends, and in the end the means: the gradients in the memory order of the weights, then
            for each weight whether there is one. Replica i sums the i-th of as many stretches.
        others: the stretch that this replica sums, of every replica.
        missing: names without a gradient yet.
        work: the exchange under way.
    """

    weights: dict[str, Tensor]
    own: Tensor
    others: Tensor
    missing: set[str] = field(default_factory=set)
    work: dist.Work | None = None

    @classmethod
    def of(cls, weights: dict[str, Tensor], count: int, device: torch.device) -> "_Bucket":
        size = sum(weight.numel() for weight in weights.values()) + len(weights)
        dtype = next(iter(weights.values())).dtype
        own, others = (torch.zeros(-(-size // count) * count, dtype=dtype, device=device) for _ in range(2))
        return cls(weights, own, others)

    def views(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, the gradient and whether there is one, as memory of `own`."""
        start, flags = 0, sum(weight.numel() for weight in self.weights.values())
        for index, (name, weight) in enumerate(self.weights.items()):
            yield name, self.own.as_strided(weight.shape, weight.stride(), start), self.own[flags + index]
            start += weight.numel()

    def begin(self) -> None:
        """Begins a round."""
        self.missing, self.work = set(self.weights), None

    def collect(self, group: dist.ProcessGroup) -> None:
        """Begins to send each replica the stretch that it sums."""
        with connected():
            self.work = dist.all_to_all_single(self.others, self.own, group=group, async_op=True)

    def spread(self, contributing: int, group: dist.ProcessGroup) -> None:
        """Sums this replica's stretch over the first so many replicas, and begins to send it to all."""
        assert self.work is not None
        with connected():
            self.work.wait()
            stretches = self.others.chunk(dist.get_world_size(group))
            total = mean_in_first(stretches[:contributing])
            for stretch in stretches[1:]:
                stretch.copy_(total)
            self.work = dist.all_to_all_single(self.own, self.others, group=group, async_op=True)


@dataclass(frozen=True)
class ReplicaGroups:
    """The process groups of a stage's replicas.

    Attributes:
        count: R.
        replica: the number of this one.
        apart, together: of gradients on the way to who sums them, and of their means on the way back, each of which
            keeps its own order.
        control: of what is told in host memory.
        have_losses: whether it is the last stage.
    """

    count: int
    replica: int
    apart: dist.ProcessGroup
    together: dist.ProcessGroup
    control: dist.ProcessGroup
    have_losses: bool

    @classmethod
    def of(
        cls, replicas: Replicas, worker: int, device: torch.device, *, device_to_device: bool
    ) -> "ReplicaGroups | None":
        """Those of a worker, whose rank that is; None where its stage has no other. All processes call it together."""
        own, backend = None, "nccl" if device_to_device else "gloo"
        for stage, count in enumerate(replicas.counts):
            ranks = [*replicas.workers_of(stage)]
            if count > 1:  # every process makes all groups, in one order, as torch requires
                made = [dist.new_group(ranks, timeout=NEVER, backend=each) for each in (backend, backend, "gloo")]
                if worker in ranks:
                    apart, together, control = made
                    own = cls(count, ranks.index(worker), apart, together, control, stage == len(replicas.counts) - 1)
        if own is not None and device_to_device:
            for group in (own.apart, own.together):  # NCCL connects in the first call, which waits for all
                dist.all_reduce(torch.zeros(1, device=device), group=group)
        return own

    def of_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first replica's tensors, which all of them have under the same names; all call it together."""
        found = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        for tensor in found.values():
            with connected():
                dist.broadcast(tensor, group=self.control, group_src=0)
        return found

    def from_all(self, value: Any) -> list[Any]:
        """The value of JSON's that each replica gives, in each of them."""
        return exchange.from_all(value, self.control)


class ExchangedRounds:
    """The rounds of this process's stage whose other replicas are elsewhere.

    Gradients leave in buckets, last layers first, as soon as the last backward of a minibatch has found all of one.
    Each replica sums a stretch of every bucket in the order of the replicas, and sends its mean to the others, also
    while the backward runs. All replicas take up the buckets in one order, as collective operations must.

    Args:
        weights: name -> weight of the stage, in the order of its layers.
        groups: of its replicas.
        device: where buffers are; the stage's own, or host memory.
        waiting: a context around every wait for another process.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], groups: "ReplicaGroups", device: torch.device, waiting: Around
    ) -> None:
        self._groups = groups
        self._waiting = waiting
        self._buckets = [_Bucket.of(each, groups.count, device) for each in _portions(_layouts(weights))]
        self._of = {name: bucket for bucket in self._buckets for name in bucket.weights}
        self._views = {name: view for bucket in self._buckets for name, *view in bucket.views()}
        self._begin()

    def _begin(self) -> None:
        self._sent = self._spread = 0
        self._attendance: _Attendance | None = None
        for bucket in self._buckets:
            bucket.begin()

    def put(self, name: str, gradient: Tensor) -> None:
        """Takes a gradient that is complete; sends its bucket once that is, and those before it have been sent."""
        if name in self._of[name].missing:
            self._fill(name, gradient)
        while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
            self._send(has_minibatch=True)
        while self._spread < self._sent and self._has_come(self._buckets[self._spread]):
            self._spread_next()

    def _fill(self, name: str, gradient: Tensor | None) -> None:
        values, there = self._views[name]
        if gradient is None:
            values.zero_()
        else:
            values.copy_(gradient)
        there.fill_(gradient is not None)
        self._of[name].missing.discard(name)

    def _send(self, *, has_minibatch: bool) -> None:
        if self._attendance is None:
            self._attendance = _Attendance(self._groups, has_minibatch=has_minibatch)
        bucket = self._buckets[self._sent]
        for name in [*bucket.missing]:
            self._fill(name, None)
        bucket.collect(self._groups.apart)
        self._sent += 1

    def _has_come(self, bucket: _Bucket) -> bool:
        assert bucket.work is not None
        assert self._attendance is not None
        return self._attendance.known and bucket.work.is_completed()

    def _spread_next(self) -> None:
        assert self._attendance is not None
        self._buckets[self._spread].spread(self._attendance.count, self._groups.together)
        self._spread += 1

    def take(self, this: Round, found: Offer) -> Found:
        """What all replicas have found, once all have come to the end of the round; waits for them.

        Raises:
            LostStageError: one is gone.
        """
        for name, gradient in found.gradients.items():
            self.put(name, gradient)
        while self._sent < len(self._buckets):
            self._send(has_minibatch=this.own(self._groups.replica) is not None)
        with self._waiting("the gradients of the other replicas"), connected():
            while self._spread < len(self._buckets):
                self._spread_next()
            for bucket in self._buckets:
                assert bucket.work is not None
                bucket.work.wait()
            losses = self._all_losses(this, found.losses) if self._groups.have_losses else []
        gradients = {
            name: _in_memory_of(found.gradients.get(name), values)
            for name, (values, there) in self._views.items()
            if there.item() > 0
        }
        self._begin()
        return Found(gradients, losses)

    def _all_losses(self, this: Round, losses: Sequence[StepLoss]) -> list[StepLoss]:
        own = torch.zeros(2, dtype=torch.float64)
        for loss in losses:
            own[0], own[1] = loss.mean.double(), loss.count
        all_of_them = [torch.empty_like(own) for _ in range(self._groups.count)]
        dist.all_gather(all_of_them, own, group=self._groups.control)
        return [StepLoss(each[0].float(), int(each[1])) for each in all_of_them[: this.count]]


class _Attendance:
    """How many replicas have a minibatch in a round, which one that is still in its backward learns from the others.

    A run that is broken off cuts its last round short, and not every replica knows when its backward begins.
    """

    def __init__(self, groups: ReplicaGroups, *, has_minibatch: bool) -> None:
        self._counts = torch.tensor([int(has_minibatch)])
        with connected():
            self._work = dist.all_reduce(self._counts, group=groups.control, async_op=True)

    @property
    def known(self) -> bool:
        return bool(self._work.is_completed())

    @property
    def count(self) -> int:
        """Waits for those that have not come to the round."""
        self._work.wait()
        return int(self._counts)


def _in_memory_of(own: Tensor | None, mean: Tensor) -> Tensor:
    """A mean in memory that no bucket uses: that of this replica's own gradient, where it lies in the same order."""
    return own.copy_(mean) if own is not None and own.stride() == mean.stride() else mean.clone()


def _portions(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The weights from the last layer on, which a backward finds the gradients of first, a bucket at a time."""
    portion: dict[str, Tensor] = {}
    size = 0
    for name, weight in reversed([*weights.items()]):
        same = not portion or next(iter(portion.values())).dtype == weight.dtype
        if portion and (not same or size + weight.nbytes > _BUCKET_BYTES):
            yield portion
            portion, size = {}, 0
        portion[name] = weight
        size += weight.nbytes
    if portion:
        yield portion
