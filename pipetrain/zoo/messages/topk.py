"""Messages of the largest values alone."""

import copy
import math
from collections.abc import Mapping
from fractions import Fraction
from operator import itemgetter
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.errors import check_flag
from pipetrain.engine.number_range import NumberRange
from pipetrain.engine.tensors import Tensors, flat
from pipetrain.zoo.messages.base import Direction, MessageFormat, MessageTensor
from pipetrain.zoo.messages.values import in_memory_order

_MOST_SHAPES = 8
"""Shapes of a tensor whose errors are kept."""


class TopK(MessageFormat):
    """Sends a share of the values, the largest in magnitude; with error feedback adds what it left out to the next.

    What is left out is kept for each place in the message and each shape (Stich et al. 2018, Karimireddy et al. 2019).

    Args:
        share: of the values that are sent.
        error_feedback: None: for gradients alone, as activations of other samples have nothing to make up for.
    """

    name = "topk"
    parts = 2

    def __init__(self, share: float = 0.1, error_feedback: bool | None = None) -> None:  # noqa: FBT001  (a setting)
        NumberRange(0, 1, least_too=False, most_too=True).check("share", share, "such as 0.1")
        if error_feedback is not None:
            check_flag("error_feedback", error_feedback)
        self.share, self.error_feedback = share, error_feedback
        self.keeps_state = bool(error_feedback)
        self._left: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    @override
    def meant_for(self, direction: Direction) -> Self:
        usual = direction is Direction.GRADIENTS
        found = copy.copy(self)
        found.error_feedback = found.keeps_state = usual if self.error_feedback is None else self.error_feedback
        found._left = {}
        return found

    @override
    def encode(self, tensor: Tensor, of: MessageTensor) -> Tensors:
        values = in_memory_order(tensor)
        if self.keeps_state:
            values = self._with_left(values, tensor, of)
        count = math.ceil(Fraction(str(self.share)) * len(values))  # in floats, 0.07 of 100 is above 7
        chosen = values.abs().topk(count, sorted=False).indices
        picked, most = values[chosen], torch.finfo(tensor.dtype).max
        # what error feedback adds may exceed the range of float16, which the sender's loss scale does not see
        sent = torch.where(picked.isfinite(), picked.clamp(-most, most), picked).to(tensor.dtype)
        if self.keeps_state:
            self._leave(values, chosen, sent, tensor, of)
        return sent, chosen if len(values) > torch.iinfo(torch.int32).max else chosen.to(torch.int32)

    def _with_left(self, values: Tensor, tensor: Tensor, of: MessageTensor) -> Tensor:
        left = self._left.pop((of.place, tuple(tensor.shape)), None)
        if left is None:
            return values
        return values + (left if of.loss_scale is None else left * of.loss_scale)

    def _leave(self, values: Tensor, chosen: Tensor, sent: Tensor, tensor: Tensor, of: MessageTensor) -> None:
        left = values.index_add(0, chosen, -sent.to(values.dtype))
        if of.loss_scale is not None:
            left = left / of.loss_scale
        # a gradient that overflows is not applied, and must not come back
        left = left.nan_to_num_(0.0, 0.0, 0.0)
        self._left[of.place, tuple(tensor.shape)] = left
        for oldest in [key for key in self._left if key[0] == of.place][:-_MOST_SHAPES]:
            del self._left[oldest]

    @override
    def decode(self, parts: Tensors, out: Tensor, of: MessageTensor) -> None:
        sent, chosen = parts
        flat(out.zero_())[chosen.long()] = sent

    @override
    def state(self) -> dict[str, Tensor]:
        # numbered, as the oldest are the first to go
        return {
            "-".join(map(str, (age, place, *shape))): left
            for age, ((place, shape), left) in enumerate(self._left.items())
        }

    @override
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        by_age = sorted(((tuple(map(int, name.split("-"))), left) for name, left in state.items()), key=itemgetter(0))
        self._left = {(place, tuple(shape)): left for (_, place, *shape), left in by_age}
