"""Losses: what a minibatch is averaged over, and which metrics an evaluation reports."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.number_range import NOT_NEGATIVE, SHARE

Loss = Callable[..., Tensor]
"""(output, target) -> the mean loss, a scalar. May also have `count` and `metrics`, as CrossEntropy has."""


def on_device(loss: Loss, device: torch.device) -> Loss:
    """The loss with its buffers, where it has any, on `device`."""
    return loss.to(device) if isinstance(loss, nn.Module) else loss


class CrossEntropy(nn.Module):
    """Mean cross-entropy of class scores; evaluations also count top-1 and top-5 hits.

    Args:
        label_smoothing: torch's, from 0 to 1.
        auxiliary: the weight of each auxiliary head's loss beside the model's own; 0.3 is GoogLeNet's (section 5).

    Raises:
        ConfigError: `label_smoothing` is out of its range, or `auxiliary` is negative.
    """

    def __init__(self, label_smoothing: float = 0.0, auxiliary: float = 0.3) -> None:
        super().__init__()
        SHARE.check("loss.label_smoothing", label_smoothing)
        NOT_NEGATIVE.check("loss.auxiliary", auxiliary)
        self.label_smoothing = label_smoothing
        self.auxiliary = auxiliary

    @override
    def forward(self, scores: Tensor, *further: Tensor) -> Tensor:
        """Scores (n, classes, ...), those of auxiliary heads where there are any, and targets (n, ...) to a scalar."""
        *heads, target = further
        loss = self._mean(scores, target)
        for head in heads:
            loss = loss + self.auxiliary * self._mean(head, target)
        return loss

    def _mean(self, scores: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores, target, label_smoothing=self.label_smoothing)

    def count(self, target: Tensor) -> int:
        """The targets that the mean runs over."""
        return target.numel()

    def metrics(self, scores: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Name -> hits, to be divided by the count of targets; top-5 only where there are more than five classes."""
        return class_hits(scores, target)


def class_hits(scores: Tensor, target: Tensor, ignored: int | None = None) -> dict[str, Tensor]:
    """How often the target is the class of the highest score, and among the first five where there are more.

    Args:
        scores: (n, classes, ...).
        target: (n, ...), whole numbers.
        ignored: the target that does not count.
    """
    classes = scores.shape[1]
    ranked = scores.topk(min(5, classes), dim=1).indices
    hits = ranked == target.unsqueeze(1)
    if ignored is not None:
        hits &= target.ne(ignored).unsqueeze(1)
    metrics = {"top1": hits[:, 0].sum()}
    if classes > 5:
        metrics["top5"] = hits.sum()
    return metrics


def of_classes(loss: Loss, targets: tuple[Tensor, ...]) -> bool:
    """Whether the loss is a cross-entropy, ours or torch's, of targets that are classes."""
    whole = len(targets) == 1 and not (targets[0].is_floating_point() or targets[0].is_complex())
    return whole and isinstance(loss, CrossEntropy | nn.CrossEntropyLoss | nn.NLLLoss)


def ignored_of(loss: Loss) -> int | None:
    """The target that a loss leaves out of its mean."""
    ignored: int | None = getattr(loss, "ignore_index", None)
    return ignored


def count_of(loss: Loss, targets: tuple[Tensor, ...]) -> int:
    """What the loss averages over: its own `count` of the targets, those that are classes, or the samples."""
    count = getattr(loss, "count", None)
    if count is not None:
        return int(count(*targets))
    if not of_classes(loss, targets):
        return len(targets[0])
    ignored = ignored_of(loss)
    return targets[0].numel() if ignored is None else max(1, int(targets[0].ne(ignored).sum()))


def hits_of(loss: Loss, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
    """The loss's own metrics as sums, or how often a class was hit; none where there are no classes."""
    metrics: Callable[..., Mapping[str, Tensor]] | None = getattr(loss, "metrics", None)
    if metrics is not None:
        return metrics(*outputs, *targets)
    return class_hits(outputs[0], targets[0], ignored_of(loss)) if of_classes(loss, targets) else {}


def has_perplexity(loss: Loss, targets: tuple[Tensor, ...]) -> bool:
    """Whether exp(loss) is a perplexity: a plain cross-entropy of sequences, targets (n, positions)."""
    plain = not getattr(loss, "label_smoothing", 0.0) and getattr(loss, "weight", None) is None
    return plain and of_classes(loss, targets) and targets[0].ndim == 2


def step_loss(losses: list[Tensor], counts: list[int]) -> Tensor:
    """Σ_j (n_j / n) · loss_j in float32, j ascending: the loss of a minibatch from those of its microbatches."""
    total = sum(counts)
    value = torch.zeros((), dtype=torch.float32, device=losses[0].device)
    for loss, count in zip(losses, counts, strict=True):
        value = value + loss.float() * (count / total)
    return value


def percent(hits: float, count: int) -> float:
    """Hits among `count`, in percent."""
    return 100.0 * hits / count
