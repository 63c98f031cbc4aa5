"""Loss and metrics over an evaluation set."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pipetrain.data.loader import Loader
from pipetrain.device_queue import numbers, queues
from pipetrain.errors import RunError
from pipetrain.executors.feed import Feed, to_device
from pipetrain.losses import (
    NO_METRICS,
    Loss,
    Metrics,
    RunningMetrics,
    check_hits,
    correct_counts,
    count_of,
    log_loss_of,
)
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.tensors import Tensors

_UNREAD = 256
"""Number of parts left on the device before their results are read."""


def evaluate_model(
    loader: Loader,
    compute: Callable[[Tensors], Tensors],
    loss: Loss,
    device: torch.device,
    metrics: Metrics = NO_METRICS,
    parts: Iterable[int] | None = None,
) -> dict[str, float]:
    """The loss and metrics of a model that one process computes, over all that `loader` reads.

    Args:
        loader: reads the evaluation set, a part at a time.
        compute: the model.
        loss: of the run.
        device: of the model.
        metrics: further metrics, in addition to those of the loss.
        parts: asked for a number before each part; None for nothing to ask.
    """
    feed = Feed(loader, DrainInterval.whole(len(loader)), device, inputs=True, targets=True)
    asked = range(len(loader)) if parts is None else parts
    return evaluate((compute(feed.inputs()) for _ in asked), feed.host_targets, loss, metrics)


def evaluate(
    outputs: Iterable[Tensors], targets: Callable[[], Tensors], loss: Loss, metrics: Metrics = NO_METRICS
) -> dict[str, float]:
    """The loss and metrics over `outputs`, a part of the evaluation set at a time.

    Args:
        outputs: of the model.
        targets: gives those of the next part, in host memory or on the device.
        loss: of the run.
        metrics: metrics of the run, in addition to those of the loss.

    Returns:
        `loss`, the `perplexity` where there is one, each metric of the loss in percent, and the further ones.
    """
    evaluated = metrics.begin()
    found = metrics_of(_scored(part, targets(), loss, evaluated) for part in outputs)
    return found | evaluated.values()


def _scored(outputs: Tensors, targets: Tensors, loss: Loss, evaluated: RunningMetrics) -> "PartScore":
    score = PartScore.of(loss, outputs, targets)
    if evaluated:
        evaluated.update((*outputs, *to_device(targets, outputs[0].device)))
    return score


@dataclass(frozen=True)
class PartScore:
    """Loss and metrics of a part of an evaluation set; the numbers of a device stay there until `on_host`.

    Attributes:
        count: what the loss averages over.
        mean: of the loss.
        log_loss: the loss that the perplexity is computed from; None if the loss has no perplexity.
        hits: of each metric.
    """

    count: int
    mean: float | Tensor
    log_loss: float | Tensor | None
    hits: Mapping[str, float | Tensor]

    @classmethod
    @torch.no_grad()
    def of(cls, loss: Loss, outputs: Tensors, targets: Tensors) -> "PartScore":
        """Sums of one microbatch. Its targets may still be in host memory, where counting them waits for nothing.

        Raises:
            RunError: the loss returns no mean, or a metric of it is no number of hits.
        """
        there = to_device(targets, outputs[0].device)
        mean = loss(*outputs, *there)
        if not isinstance(mean, Tensor) or mean.numel() != 1:
            shown = f"a tensor of shape {tuple(mean.shape)}" if isinstance(mean, Tensor) else f"a {type(mean).__name__}"
            raise RunError(f"the loss must return the mean, a tensor of one element, not {shown}")
        hits = correct_counts(loss, outputs, there)
        part = cls(count_of(loss, targets), mean, log_loss_of(loss, mean, outputs, there), hits)
        return part if queues(outputs[0].device) else next(on_host([part]))

    def numbers(self) -> list[float | Tensor]:
        """All of them in one order, but for the count."""
        return [self.mean, *([] if self.log_loss is None else [self.log_loss]), *self.hits.values()]

    def holding(self, found: list[float]) -> "PartScore":
        """The same with other `numbers`, which the host knows.

        Raises:
            RunError: a metric of the loss is no number of hits.
        """
        mean, *others = found
        log_loss = None if self.log_loss is None else others.pop(0)
        hits = dict(zip(self.hits, others, strict=True))
        for name, number in hits.items():
            check_hits(name, number, self.count)
        return replace(self, mean=mean, log_loss=log_loss, hits=hits)


def on_host(parts: Iterable[PartScore]) -> Iterator[PartScore]:
    """The parts with numbers that the host knows, read for many parts together."""
    remaining = iter(parts)
    while some := list(itertools.islice(remaining, _UNREAD)):
        scalars = [each for part in some for each in part.numbers() if isinstance(each, Tensor)]
        values = iter(numbers(scalars))
        for part in some:
            yield part.holding([next(values) if isinstance(each, Tensor) else each for each in part.numbers()])


def metrics_of(parts: Iterable[PartScore]) -> dict[str, float]:
    """Metrics over all parts, exact whatever their sizes: `loss`, `perplexity` if any, and percentages."""
    count, total, hits = 0, 0.0, dict[str, float]()
    log_loss: float | None = None
    for part in on_host(parts):
        count += part.count
        total += float(part.mean) * part.count
        if part.log_loss is not None:
            log_loss = (log_loss or 0.0) + float(part.log_loss) * part.count
        for name, number in part.hits.items():
            hits[name] = hits.get(name, 0.0) + float(number)
    count = max(1, count)
    return {
        "loss": total / count,
        **({} if log_loss is None else {"perplexity": _exp(log_loss / count)}),
        **{name: 100.0 * number / count for name, number in hits.items()},
    }


def _exp(value: float) -> float:
    return torch.tensor(value, dtype=torch.float64).exp().item()
