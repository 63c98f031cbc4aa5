"""The factor that keeps a stage's gradients within the range of float16 (Micikevicius et al. 2018)."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

_FIRST = 2.0**16
_GROWS_AFTER = 2000


class LossScaler:
    """A power of two that gradients are multiplied by until the update; halved when one was not finite.

    As torch.amp.GradScaler does it: after a gradient that is not finite the update is skipped, and after 2,000 updates
    in a row the factor is doubled. Where all stages hold the same gradients against it, all have the same factor.

    Attributes:
        scale: the factor.
        skipped: updates left out so far.
    """

    def __init__(self) -> None:
        self.scale = _FIRST
        self.skipped = 0
        self._in_a_row = 0

    def passes(self, squared_norms: Iterable[float]) -> bool:
        """Whether the gradients of these squared norms may be applied; changes the factor after them."""
        finite = all(map(math.isfinite, squared_norms))
        if not finite:
            self.scale /= 2
            self.skipped += 1
        self._in_a_row = self._in_a_row + 1 if finite else 0
        if self._in_a_row == _GROWS_AFTER:
            self.scale *= 2
            self._in_a_row = 0
        return finite

    def report(self) -> dict[str, float]:
        """What `summary.json` says of it."""
        return {"loss_scale": self.scale, "skipped_updates": self.skipped}

    def state(self) -> Tensor:
        """What a checkpoint keeps, float64."""
        return torch.tensor([self.scale, self.skipped, self._in_a_row], dtype=torch.float64)

    def load_state(self, state: Tensor) -> None:
        """Puts back what `state` gave."""
        self.scale = state[0].item()
        self.skipped, self._in_a_row = map(int, state[1:].tolist())
