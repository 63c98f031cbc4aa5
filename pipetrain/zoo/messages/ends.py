"""The ends of a stage's links to stages of other processes, where tensors are encoded and decoded."""

import copy
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.data.minibatches import Minibatches, microbatch_sizes
from pipetrain.engine.errors import RunError
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import Kind
from pipetrain.engine.stage.message_ends import MessageEnds
from pipetrain.engine.stage.module import BackwardId
from pipetrain.engine.tensors import Tensors, dense
from pipetrain.zoo.messages.base import Direction, MessageFormat, MessageTensor
from pipetrain.zoo.messages.meter import MessageMeter


@dataclass(frozen=True)
class End:
    """One end of a link, and its copy of the format.

    Attributes:
        cut: first layer behind the cut.
        takes_gradient: True for each tensor of a message that takes a gradient; None if all do. A message of another
            number of tensors, as some models send in training alone, takes gradients for all.
        sends: True if this end sends.
    """

    direction: Direction
    cut: int
    format: MessageFormat
    takes_gradient: Sequence[bool] | None = None
    sends: bool = field(kw_only=True)

    @property
    def name(self) -> str:
        """Name in checkpoints, the same in any partition with this cut."""
        return f"{self.cut}.{self.direction}.{'sent' if self.sends else 'received'}.{type(self.format).__name__}"

    def encode(self, tensors: Tensors, of: MessageTensor, meter: MessageMeter | None = None) -> Iterator[Tensor]:
        """The tensors of a message as they travel.

        An encoded one is a frame, an empty tensor that has its shape, strides and dtype, and the parts of the format.
        """
        takes = self.takes_gradient or ()
        for place, tensor in enumerate(tensors):
            # an empty tensor is encoded always, as it could pass for a frame
            plain = len(takes) == len(tensors) and not takes[place] and tensor.numel()
            if plain or not tensor.is_floating_point() or not tensor.dim():
                yield tensor
                continue
            whole = dense(tensor.detach())
            yield whole.new_empty(0).as_strided((*whole.shape, 0), (*whole.stride(), 1))
            if whole.numel():
                yield from self._parts(whole, replace(of, key=(*of.key, place)), meter)
            else:
                yield from [whole.new_empty(0)] * self.format.parts

    def _parts(self, whole: Tensor, of: MessageTensor, meter: MessageMeter | None) -> Tensors:
        encoded: object = self.format.encode(whole, of)
        parts = tuple(encoded) if isinstance(encoded, tuple | list) else ()
        tensors = all(isinstance(part, Tensor) for part in parts)
        if len(parts) != self.format.parts or not tensors:
            found = f"{len(parts)} tensors" if parts and tensors else f"{_kinds(encoded)}, not a tuple of tensors"
            raise RunError(
                f"messages.{self.direction}={self.format.name}: encode returned {found}, and its class says "
                f"parts = {self.format.parts}"
            )
        mirrored = self._arriving(parts, whole, of) if self.format.mirrors else None
        if meter is not None and meter.compares(of):
            with meter.encoding.paused():
                arriving = self._arriving(parts, whole, of) if mirrored is None else mirrored
                meter.compare(self.direction, whole, arriving)
        return parts

    def _arriving(self, parts: Tensors, whole: Tensor, of: MessageTensor) -> Tensor:
        arriving = torch.empty_like(whole)
        self._decode(parts, arriving, of)
        return arriving

    def _decode(self, parts: Tensors, out: Tensor, of: MessageTensor) -> None:
        returned: object = self.format.decode(parts, out, of)
        if returned is not None:
            raise RunError(
                f"messages.{self.direction}={self.format.name}: decode returned a {type(returned).__name__}; it writes "
                "what arrives into `out` instead"
            )

    def decode(self, tensors: Tensors, of: MessageTensor) -> Iterator[Tensor]:
        """The inverse of `encode`."""
        arriving = iter(tensors)
        # of an encoded tensor, the loop sees the frame alone
        for place, tensor in enumerate(arriving):
            if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.shape[-1]:
                yield tensor
            else:
                parts = tuple(islice(arriving, self.format.parts))
                out = tensor.new_empty_strided(tensor.shape[:-1], tensor.stride()[:-1])
                if out.numel():
                    self._decode(parts, out, replace(of, key=(*of.key, place)))
                yield out


def _kinds(encoded: object) -> str:
    """The type of a value, and of its members, such as `a tuple (int)`."""
    members = ", ".join(type(each).__name__ for each in encoded) if isinstance(encoded, tuple | list) else ""
    return f"a {type(encoded).__name__}" + f" ({members})" * bool(members)


class StageEnds(MessageEnds):
    """The ends of the links between a stage and stages of other processes.

    Args:
        ends: of these links; in a direction without a format there are none.
        sends: directions in which the stage sends.
        seed: key of all random draws.
        meter: measures what is encoded and decoded.
        scaled: True if the loss is scaled: the factor is the last gradient.
        evaluates: True if activations of evaluations have the format, too.
    """

    def __init__(
        self,
        ends: Sequence[End],
        sends: Collection[Direction],
        seed: int,
        meter: MessageMeter,
        *,
        scaled: bool,
        evaluates: bool,
    ) -> None:
        self._meter = meter
        self._sending = {end.direction: end for end in ends if end.sends}
        self._receiving = {end.direction: end for end in ends if not end.sends}
        self._pristine = {end.sends: copy.deepcopy(end) for end in ends if end.direction is Direction.ACTIVATIONS}
        self._ends, self._sends = ends, sends
        self._seed, self._scaled, self._evaluates = seed, scaled, evaluates
        self._interval, self._num_microbatches = DrainInterval.whole(0), 1
        self._samples: Sequence[Sequence[int]] = ()

    @override
    def begin(self, minibatches: Minibatches, interval: DrainInterval, num_microbatches: int) -> None:
        self._interval, self._num_microbatches = interval, num_microbatches
        if any(end.format.needs_samples for end in self._ends):
            self._samples = minibatches.minibatches(interval.epoch)

    @override
    def form(self, epoch: int) -> Hashable:
        return tuple((end.direction, end.format.form(epoch)) for end in self._ends)

    @override
    def encode(self, kind: Kind, message: BackwardId, tensors: Tensors) -> Tensors:
        direction, sent = _direction(kind), tensors
        if (end := self._sending.get(direction)) is not None:
            with self._meter.encoding.running():
                sent = tuple(end.encode(tensors, self._about(end, message, tensors), self._meter))
        if direction in self._sends:
            self._meter.add(direction, message[0], tensors, sent)
        return sent

    @override
    def decode(self, kind: Kind, message: BackwardId, tensors: Tensors) -> Tensors:
        if (end := self._receiving.get(_direction(kind))) is None:
            return tensors
        with self._meter.decoding.running():
            return tuple(end.decode(tensors, self._about(end, message, tensors)))

    @override
    def of_evaluation(self, tensors: Tensors, *, sends: bool) -> Tensors:
        if not self._evaluates or sends not in self._pristine:
            return tensors
        end = copy.deepcopy(self._pristine[sends])
        of = MessageTensor((self._seed, *_place(end), -1, -1))
        return tuple(end.encode(tensors, of) if sends else end.decode(tensors, of))

    def _about(self, end: End, message: BackwardId, tensors: Tensors) -> MessageTensor:
        t, j = message
        samples: Sequence[int] | None = None
        if self._samples and j is not None:
            whole = self._samples[self._interval.first + t - self._interval.start]
            first, last = [0, *accumulate(microbatch_sizes(len(whole), self._num_microbatches))][j : j + 2]
            samples = whole[first:last]
        scale = tensors[-1] if self._scaled and end.direction is Direction.GRADIENTS else None
        key = self._seed, *_place(end), t, -1 if j is None else j
        return MessageTensor(key, self._interval.epoch, samples, scale)

    @override
    def report(self) -> dict[str, Any]:
        return self._meter.report()

    @override
    def state(self) -> dict[str, dict[str, Tensor]]:
        return {end.name: end.format.state() for end in self._ends}

    @override
    def load_state(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        for end in self._ends:
            if end.name in saved:
                end.format.load_state({key: value.to(self._meter.device) for key, value in saved[end.name].items()})


def _direction(kind: Kind) -> Direction:
    return Direction.GRADIENTS if kind is Kind.BACKWARD else Direction.ACTIVATIONS


def _place(end: End) -> tuple[int, int]:
    return [*Direction].index(end.direction), end.cut
