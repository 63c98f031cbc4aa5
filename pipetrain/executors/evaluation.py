"""Loss and metrics over an evaluation set."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

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
    return metrics_of(PartScore.of(loss, part, targets()) for part in outputs)


@dataclass(frozen=True)
class PartScore:
    """Loss and metrics of a part of an evaluation set.

    Attributes:
        count: what the loss averages over.
        mean: of the loss.
        log_loss: what the perplexity follows from; None where there is none.
        hits: of each metric.
    """

    count: int
    mean: float
    log_loss: float | None
    hits: dict[str, float]

    @classmethod
    @torch.no_grad()
    def of(cls, loss: Loss, outputs: Tensors, targets: Tensors) -> "PartScore":
        """That of one microbatch."""
        mean = loss(*outputs, *targets).item()
        hits = {name: hits.item() for name, hits in hits_of(loss, outputs, targets).items()}
        return cls(count_of(loss, targets), mean, log_loss_of(loss, mean, outputs, targets), hits)


def metrics_of(parts: Iterable[PartScore]) -> dict[str, float]:
    """Those of all parts together, exact whatever their sizes: `loss`, `perplexity` if any, and percentages."""
    count, total, hits = 0, 0.0, dict[str, float]()
    log_loss: float | None = None
    for part in parts:
        count += part.count
        total += part.mean * part.count
        if part.log_loss is not None:
            log_loss = (log_loss or 0.0) + part.log_loss * part.count
        for name, number in part.hits.items():
            hits[name] = hits.get(name, 0.0) + number
    count = max(1, count)
    return {
        "loss": total / count,
        **({} if log_loss is None else {"perplexity": _exp(log_loss / count)}),
        **{name: percent(number, count) for name, number in hits.items()},
    }


def _exp(value: float) -> float:
    return torch.tensor(value, dtype=torch.float64).exp().item()
