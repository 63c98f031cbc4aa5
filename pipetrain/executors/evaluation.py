"""Loss and metrics over an evaluation set."""

from collections.abc import Callable, Iterable

import torch

from pipetrain.data.loader import Loader
from pipetrain.executors.feed import Feed
from pipetrain.losses import Loss, count_of, hits_of, log_loss_of, percent
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.tensors import Tensors


def evaluate_model(
    loader: Loader, compute: Callable[[Tensors], Tensors], loss: Loss, device: torch.device
) -> dict[str, float]:
    """The loss and metrics of a model that one process computes, over all that `loader` reads."""
    feed = Feed(loader, DrainInterval.whole(len(loader)), device, inputs=True, targets=True)
    return evaluate((compute(feed.inputs()) for _ in range(len(loader))), feed.targets, loss)


def evaluate(outputs: Iterable[Tensors], targets: Callable[[], Tensors], loss: Loss) -> dict[str, float]:
    """The loss and metrics over `outputs`, a part of the evaluation set at a time; `targets` gives those of the next.

    Returns:
        `loss`, the `perplexity` where there is one, and each metric of the loss in percent.
    """
    score = Score(loss)
    for part in outputs:
        score.add(part, targets())
    return score.metrics()


class Score:
    """Loss and metrics summed over an evaluation set, exact whatever the sizes of its microbatches."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._count = 0
        self._sum = 0.0
        self._hits: dict[str, float] = {}
        self._log_loss: float | None = None

    @torch.no_grad()
    def add(self, outputs: Tensors, targets: Tensors) -> None:
        """Adds one microbatch."""
        count = count_of(self._loss, targets)
        mean = self._loss(*outputs, *targets).item()
        self._count += count
        self._sum += mean * count
        log_loss = log_loss_of(self._loss, mean, outputs, targets)
        if log_loss is not None:
            self._log_loss = (self._log_loss or 0.0) + log_loss * count
        for name, hits in hits_of(self._loss, outputs, targets).items():
            self._hits[name] = self._hits.get(name, 0.0) + hits.item()

    def metrics(self) -> dict[str, float]:
        """`loss`, the `perplexity` where there is one, and each metric of the loss in percent."""
        count = max(1, self._count)
        return {
            "loss": self._sum / count,
            **({} if self._log_loss is None else {"perplexity": _exp(self._log_loss / count)}),
            **{name: percent(hits, count) for name, hits in self._hits.items()},
        }


def _exp(value: float) -> float:
    return torch.tensor(value, dtype=torch.float64).exp().item()
