"""Loss and metrics over an evaluation set."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pipetrain.engine.data.minibatches import Minibatches
from pipetrain.engine.device_queue import numbers, queues
from pipetrain.engine.executors.feed import Feed, Targets, Uploads
from pipetrain.engine.executors.hooks import Around, RunHooks
from pipetrain.engine.losses import (
    NO_METRICS,
    Loss,
    Metrics,
    check_hits,
    check_mean,
    correct_counts,
    counts_of,
    log_loss_of,
)
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.tensors import Tensors

_UNREAD = 256
"""Number of parts left on the device before their results are read."""


def evaluate_model(
    loader: Minibatches,
    compute: Callable[[Tensors], Tensors],
    loss: Loss,
    uploads: Uploads,
    metrics: Metrics = NO_METRICS,
    parts: Iterable[int] | None = None,
) -> dict[str, float]:
    """The loss and metrics of a model that one process computes, over the whole evaluation set; see `evaluate`.

    The next of `parts` is taken before each part is computed.
    """
    feed = Feed(loader, DrainInterval.whole(len(loader)), uploads, inputs=True, targets=True)
    parts = range(len(loader)) if parts is None else parts
    return evaluate((compute(feed.inputs()) for _ in parts), feed.targets, loss, metrics)


def evaluate(
    outputs: Iterable[Tensors],
    targets: Callable[[], Targets],
    loss: Loss,
    metrics: Metrics = NO_METRICS,
    waiting: Around = RunHooks.waiting,
) -> dict[str, float]:
    """The loss and metrics over `outputs`, by parts of the evaluation set; `targets` returns the next part's targets.

    `waiting` is the context in which the host waits for its device.

    Returns:
        `loss`, `perplexity` if there is one, each metric of the loss in percent, and the additional ones.
    """
    running = metrics.begin()

    def scores() -> Iterator[PartScore]:
        for part in outputs:
            given = targets()
            score = PartScore.of(loss, part, given)
            if running:
                running.update((*part, *given.on_device))
            yield score

    return metrics_of(scores(), waiting) | running.values()


@dataclass(frozen=True)
class PartScore:
    """Loss and metrics of a part of an evaluation set; the numbers of a device stay there until `on_host`.

    Attributes:
        count: number of samples or tokens that the loss averages over, or the sum of their weights.
        targets: number of samples or tokens that hits are a share of.
        means: `loss`, and `log_loss`, which the perplexity is computed from, if there is one.
        hits: name of a metric -> number of hits.
    """

    count: float
    targets: float
    means: Mapping[str, float | Tensor]
    hits: Mapping[str, float | Tensor]

    @classmethod
    @torch.no_grad()
    def of(cls, loss: Loss, outputs: Tensors, targets: Targets) -> "PartScore":
        """Score of one part.

        Raises:
            RunError: the loss returns no mean, or a metric of it is no number of hits.
        """
        there = targets.on_device
        mean = loss(*outputs, *there)
        check_mean(mean)
        hits = correct_counts(loss, outputs, there)
        log_loss = log_loss_of(loss, mean, outputs, there)
        means = {"loss": mean} | ({} if log_loss is None else {"log_loss": log_loss})
        part = cls(*counts_of(loss, targets.on_host), means, hits)
        return part if queues(outputs[0].device) else next(on_host([part]))


def on_host(parts: Iterable[PartScore], waiting: Around = RunHooks.waiting) -> Iterator[PartScore]:
    """The parts with numbers in host memory, copied for many parts together.

    Raises:
        RunError: a metric of the loss is no number of hits.
    """
    remaining = iter(parts)
    while some := list(itertools.islice(remaining, _UNREAD)):
        scalars = [value for part in some for value in (*part.means.values(), *part.hits.values())]
        with waiting("its device"):  # which may wait for a message
            found = iter(numbers([value for value in scalars if isinstance(value, Tensor)]))
        for part in some:
            read = replace(part, means=_with_numbers(part.means, found), hits=_with_numbers(part.hits, found))
            for name, hits in read.hits.items():
                check_hits(name, float(hits), read.targets)
            yield read


def _with_numbers(values: Mapping[str, float | Tensor], found: Iterator[float]) -> dict[str, float]:
    """The values with the next of `found` in place of each tensor."""
    return {name: next(found) if isinstance(value, Tensor) else value for name, value in values.items()}


def metrics_of(parts: Iterable[PartScore], waiting: Around = RunHooks.waiting) -> dict[str, float]:
    """Metrics over all parts, exact whatever their sizes: `loss`, `perplexity` if any, and percentages."""
    count = targets = 0.0
    sums, hits = {"loss": 0.0}, dict[str, float]()
    for part in on_host(parts, waiting):
        count += part.count
        targets += part.targets
        for name, mean in part.means.items():
            # of no target it may be NaN
            sums[name] = sums.get(name, 0.0) + (float(mean) * part.count if part.count else 0.0)
        for name, number in part.hits.items():
            hits[name] = hits.get(name, 0.0) + (float(number) if part.targets else 0.0)
    count, targets = count or 1, targets or 1
    found = {"loss": sums["loss"] / count}
    if "log_loss" in sums:
        found["perplexity"] = torch.tensor(sums["log_loss"] / count, dtype=torch.float64).exp().item()
    return found | {name: 100.0 * number / targets for name, number in hits.items()}
