"""Gradients averaged over replicas in several processes while the backward runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.executors.messages.control import lost_stage_on_error
from pipetrain.engine.executors.messages.transport import Transport
from pipetrain.engine.executors.replicas.averaging import Averaging, Round, RoundGradients, layouts, mean_in_first
from pipetrain.engine.executors.replicas.exchange import ProcessExchange
from pipetrain.engine.executors.replicas.late_losses import LossExchange
from pipetrain.engine.losses import StepLoss
from pipetrain.engine.schedules import Replicas


@dataclass(frozen=True)
class ReplicaGroups:
    """Process groups of a stage's replicas.

    Attributes:
        count: R.
        apart, together: for gradients on the way to the replica that sums them, and for means on the way back.
        control: for messages in host memory.
        have_losses: True for the last stage.
    """

    count: int
    replica: int
    transport: Transport
    apart: dist.ProcessGroup
    together: dist.ProcessGroup
    control: dist.ProcessGroup
    have_losses: bool

    @classmethod
    def of(cls, replicas: Replicas, worker: int, transport: Transport) -> "ReplicaGroups | None":
        """Groups of a worker; None if its stage has no other replica. All processes call it together."""
        own = None
        for stage, count in enumerate(replicas.counts):
            ranks = [*replicas.workers_of(stage)]
            if count > 1:  # every process makes all groups, in one order, as torch requires
                apart, together = transport.new_group(ranks), transport.new_group(ranks)
                control = transport.control_group(ranks)
                if worker in ranks:
                    last = stage == len(replicas.counts) - 1
                    own = cls(count, ranks.index(worker), transport, apart, together, control, last)
        if own is not None:
            for group in (own.apart, own.together):
                transport.connect_all(group)
        return own

    def exchange_of_losses(self, waiting: Around) -> LossExchange | None:
        """Passes losses among the replicas of the last stage; None in other stages. All call it together."""
        if not self.have_losses:
            return None
        counts = ProcessExchange(self.control, waiting, torch.device("cpu"))
        return LossExchange(self._connected(self.together, waiting), counts)

    def exchange_of_weights(self, waiting: Around) -> ProcessExchange:
        """Passes weights among the replicas; all call it together."""
        return self._connected(self.apart, waiting)

    def _connected(self, group: dist.ProcessGroup, waiting: Around) -> ProcessExchange:
        """An exchange of what the device has, which connects the processes while none computes."""
        exchange = ProcessExchange(group, waiting, self.transport.buffers)
        exchange.begin(torch.zeros(1))()
        return exchange

    def of_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the first replica in every replica, given tensors of the same names. All call it together."""
        found = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        for tensor in found.values():
            with lost_stage_on_error():
                # as bytes: Gloo knows some dtypes only
                dist.broadcast(tensor.view(-1).view(torch.uint8), group=self.control, group_src=0)
        return found


_BYTES = 2**23
"""Bytes of gradients per bucket: few messages, yet the first leave early."""


class Bucket:
    """Weights of one dtype whose gradients travel together to and from `count` replicas.

    Attributes:
        weights: name -> weight.
        own: gradients of this replica in the memory order of the weights, then a flag for each that is present; in the
            end their means. Replica i sums the i-th of R stretches.
        others: the stretch that this replica sums, of every replica.
        given: name -> gradient of this replica, as far as there are any.
        work: the exchange under way.
    """

    def __init__(self, weights: dict[str, Tensor], count: int, transport: Transport) -> None:
        self.weights = weights
        self.given: dict[str, Tensor] = {}
        self.work: dist.Work | None = None
        self._direct = transport.direct
        size = sum(weight.numel() for weight in weights.values()) + len(weights)
        dtype = next(iter(weights.values())).dtype
        length, device = -(-size // count) * count, transport.buffers
        self.own, self.others = (torch.zeros(length, dtype=dtype, device=device) for _ in range(2))

        start = 0
        self.places: dict[str, Tensor] = {}
        """Name -> the place of its gradient in `own`."""
        for name, weight in weights.items():
            self.places[name] = self.own.as_strided(weight.shape, weight.stride(), start)
            start += weight.numel()
        self.flags = self.own[start : start + len(weights)]
        """Flags of the gradients that are present, in `own`; their means count replicas."""

    @property
    def complete(self) -> bool:
        """True if there is a gradient of every weight."""
        return len(self.given) == len(self.weights)

    def fill(self) -> None:
        """Puts the gradients in their places, and zeros where there is none."""
        if self.given:
            torch._foreach_copy_([self.places[name] for name in self.given], list(self.given.values()))
        self.flags.fill_(1)
        for index, name in enumerate(self.weights):
            if name not in self.given:
                self.places[name].zero_()
                self.flags[index] = 0

    def collect(self, group: dist.ProcessGroup) -> None:
        """Begins to send each replica the stretch that it sums."""
        with lost_stage_on_error(direct=self._direct):
            self.work = dist.all_to_all_single(self.others, self.own, group=group, async_op=True)

    def wait(self) -> None:
        """Waits for the exchange under way; has the device wait where its own memory travels."""
        assert self.work is not None, "no exchange has begun"
        with lost_stage_on_error(direct=self._direct):
            self.work.wait()

    def spread(self, contributing: int, group: dist.ProcessGroup) -> None:
        """Sums this replica's stretch over the first `contributing` replicas, and begins to send it to all."""
        self.wait()
        stretches = self.others.chunk(dist.get_world_size(group))
        total = mean_in_first(stretches[:contributing])
        for stretch in stretches[1:]:
            stretch.copy_(total)
        with lost_stage_on_error(direct=self._direct):
            self.work = dist.all_to_all_single(self.own, self.others, group=group, async_op=True)


def portions(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Buckets of weights of one dtype, from the last layer on, whose gradients a backward computes first."""
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


class OverlappedAveraging(Averaging):
    """Averages over replicas in other processes, while the backward runs.

    1. Gradients leave in buckets, last layers first, as soon as the last backward of a minibatch has completed one.
    2. Each replica sums a stretch of every bucket in the order of the replicas.
    3. It sends the mean of its stretch to all replicas.

    All replicas take up the buckets in one order, as collective operations must. From device to device, where two
    groups need one order between them, too, the means follow when all sums have begun.
    """

    def __init__(self, weights: Mapping[str, Tensor], groups: ReplicaGroups, waiting: Around) -> None:
        self._groups = groups
        self._waiting = waiting
        self._names = list(weights)
        self._buckets = [Bucket(each, groups.count, groups.transport) for each in portions(layouts(weights))]
        self._of = {name: bucket for bucket in self._buckets for name in bucket.weights}
        self._begin()

    def _begin(self) -> None:
        self._sent = self._spread = 0
        self._contributing: tuple[Tensor, dist.Work] | None = None
        self._part = RoundGradients({})
        for bucket in self._buckets:
            bucket.given, bucket.work = {}, None

    @override
    def put(self, name: str, gradient: Tensor) -> None:
        """Takes a complete gradient; sends its bucket once that is complete and those before it are sent."""
        self._of[name].given.setdefault(name, gradient)
        while self._sent < len(self._buckets) and self._buckets[self._sent].complete:
            self._send(has_minibatch=True)
        while self._spread < self._sent and self._can_spread():
            self._spread_next()

    def _send(self, *, has_minibatch: bool) -> None:
        if self._contributing is None:
            # a run that is broken off cuts its last round short, and not every replica knows when its backward begins
            count = torch.tensor([int(has_minibatch)])
            with lost_stage_on_error():
                self._contributing = count, dist.all_reduce(count, group=self._groups.control, async_op=True)
        bucket = self._buckets[self._sent]
        bucket.fill()
        bucket.collect(self._groups.apart)
        self._sent += 1

    def _can_spread(self) -> bool:
        """True if the next bucket and the number of replicas with a minibatch have come, so that nothing waits."""
        bucket = self._buckets[self._spread]
        if self._groups.transport.direct or self._contributing is None or bucket.work is None:
            return False
        return bool(self._contributing[1].is_completed() and bucket.work.is_completed())

    def _spread_next(self) -> None:
        assert self._contributing is not None
        count, work = self._contributing
        with lost_stage_on_error():
            work.wait()
        self._buckets[self._spread].spread(int(count), self._groups.together)
        self._spread += 1

    @override
    def offer(self, this: Round, replica: int, part: RoundGradients) -> None:
        self._part = part
        for name, gradient in part.gradients.items():
            self.put(name, gradient)

    @override
    def take(self, this: Round) -> RoundGradients:
        """Averages over all replicas; waits until all have reached the end of the round.

        Raises:
            LostStageError: one is gone.
        """
        with self._waiting("the gradients of the other replicas"):
            while self._sent < len(self._buckets):
                self._send(has_minibatch=this.own(self._groups.replica) is not None)
            while self._spread < len(self._buckets):
                self._spread_next()
            for bucket in self._buckets:
                bucket.wait()
            losses = self._all_losses(this) if self._groups.have_losses else []
            there = self._there()
        # in the order of the weights, as norms are sums
        means = {name: self._of[name].places[name] for name in self._names if name in there}
        gradients = {name: self._memory_of(name, mean) for name, mean in means.items()}
        if gradients:
            torch._foreach_copy_(list(gradients.values()), list(means.values()))
        self._begin()
        return RoundGradients(gradients, losses)

    def _memory_of(self, name: str, mean: Tensor) -> Tensor:
        """Memory of the device for a mean that no bucket uses: of this replica's gradient if its order is the same.

        The buckets of replicas that share a GPU are in host memory.
        """
        own = self._part.gradients.get(name)
        if own is not None and own.stride() == mean.stride():
            return own
        return torch.empty_like(mean, device=self._groups.transport.device)

    def _there(self) -> set[str]:
        """Weights with a gradient in some replica; reads the flags of all buckets together."""
        flags = torch.cat([bucket.flags != 0 for bucket in self._buckets]).tolist() if self._buckets else []
        names = (name for bucket in self._buckets for name in bucket.weights)
        return {name for name, flag in zip(names, flags, strict=True) if flag}

    def _all_losses(self, this: Round) -> list[StepLoss]:
        own = torch.zeros(2, dtype=torch.float64)
        for loss in self._part.losses:
            own[0], own[1] = loss.mean.double(), loss.count
        all_of_them = [torch.empty_like(own) for _ in range(self._groups.count)]
        with lost_stage_on_error():
            dist.all_gather(all_of_them, own, group=self._groups.control)
        return [StepLoss(each[0].float(), each[1].item()) for each in all_of_them[: this.count]]
