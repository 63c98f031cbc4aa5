"""Loss and metrics over an evaluation set."""

import torch

from pipetrain.losses import Loss, count_of, hits_of, percent
from pipetrain.tensors import Tensors


class Score:
    """Loss and metrics summed over an evaluation set, exact whatever the sizes of its microbatches."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._count = 0
        self._sum = 0.0
        self._hits: dict[str, float] = {}

    @torch.no_grad()
    def add(self, outputs: Tensors, targets: Tensors) -> None:
        """One microbatch."""
        count = count_of(self._loss, targets)
        self._count += count
        self._sum += self._loss(*outputs, *targets).item() * count
        for name, hits in hits_of(self._loss, outputs, targets).items():
            self._hits[name] = self._hits.get(name, 0.0) + hits.item()

    def metrics(self) -> dict[str, float]:
        """`loss`, and each metric of the loss in percent."""
        return {
            "loss": self._sum / self._count,
            **{name: percent(hits, self._count) for name, hits in self._hits.items()},
        }
