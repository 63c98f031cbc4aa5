"""Losses: their interface, averages over microbatches, and the counts that evaluations take from them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from pipetrain.engine.errors import RunError
from pipetrain.engine.losses.cross_entropy import CrossEntropy, TokenCrossEntropy, class_hits

Loss = Callable[..., Tensor]
"""(output, target) -> the mean loss, a scalar. It may also have

- `count(target)`: number of items that the mean runs over, or the sum of their weights; by default the samples;
- `metrics(output, target)`: name -> number of hits, from 0 to that count, by which it is divided;
- `log_loss(output, target)`: the mean negative log-likelihood; evaluations report exp of it as `perplexity`;
- `unit`: "tokens" if `count` counts tokens; the run then reports tokens per second.
"""


def on_device(loss: Loss, device: torch.device) -> Loss:
    """The loss with its buffers, where it has any, on `device`."""
    return loss.to(device) if isinstance(loss, nn.Module) else loss


def check_mean(mean: object) -> None:
    """Checks what a loss has returned.

    Raises:
        RunError: it is no tensor of one element.
    """
    if not isinstance(mean, Tensor) or mean.numel() != 1:
        shown = f"a tensor of shape {tuple(mean.shape)}" if isinstance(mean, Tensor) else f"a {type(mean).__name__}"
        raise RunError(f"the loss must return the mean, a tensor of one element, not {shown}")


def microbatch_weight(counts: Sequence[float], j: int) -> float:
    """n_j / n: the weight of microbatch j; 0 where none counts anything, such as padding alone."""
    return counts[j] / (sum(counts) or 1)


def microbatch_loss(loss: Loss, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...], weight: float) -> Tensor:
    """The mean loss of a microbatch, to go back from with this weight.

    The mean over no items, whose weight is 0, may be NaN, and so may its gradients: in its place is a 0 with gradients
    of 0.
    """
    if weight:
        return loss(*outputs, *targets)
    return torch.stack([output.sum() for output in outputs if output.is_floating_point()]).sum() * 0


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step: its mean, a float32 scalar, over `count` samples, target tokens, or weights of targets."""

    mean: Tensor
    count: float


def step_loss(losses: Sequence[Tensor], counts: Sequence[float]) -> StepLoss:
    """Σ_j (n_j / n) · loss_j in float32, j ascending: the loss of a minibatch from the losses of its microbatches.

    The mean over no items, which may be NaN, does not count.
    """
    value = torch.zeros((), dtype=torch.float32, device=losses[0].device)
    for j, loss in enumerate(losses):
        if counts[j]:
            value = value + loss.float() * microbatch_weight(counts, j)
    return StepLoss(value, sum(counts))


_RESERVED_NAMES = ("loss", "perplexity", "s")
"""Names that records give to other numbers of an evaluation."""


def is_classification(loss: Loss, targets: tuple[Tensor, ...]) -> bool:
    """True if the loss is a cross-entropy, ours or torch's, of targets that are classes or tokens."""
    whole = len(targets) == 1 and not (targets[0].is_floating_point() or targets[0].is_complex())
    return whole and isinstance(loss, CrossEntropy | TokenCrossEntropy | nn.CrossEntropyLoss | nn.NLLLoss)


def number_of_classes(loss: Loss, scores: Tensor) -> int:
    """The classes, or tokens of the vocabulary, that the scores are of."""
    return scores.shape[-1 if isinstance(loss, TokenCrossEntropy) else 1]


def ignored_target(loss: Loss) -> int | None:
    """The target that a loss leaves out of its mean."""
    return getattr(loss, "ignore_index", None)


def counts_tokens(loss: Loss) -> bool:
    """True if the loss counts tokens."""
    return getattr(loss, "unit", None) == "tokens"


def count_of(loss: Loss, targets: tuple[Tensor, ...]) -> float:
    """What the mean of the loss divides by: the first of `counts_of`."""
    return counts_of(loss, targets)[0]


def counts_of(loss: Loss, targets: tuple[Tensor, ...]) -> tuple[float, float]:
    """What the mean of the loss divides by, and what hits are a share of.

    Both are the loss's own `count` of the targets, their number, or the samples. If torch's loss has class weights, it
    divides by the sum of the targets' weights.

    Raises:
        RunError: its own `count` is negative or not finite, or counts tokens and is not whole.
    """
    number, weights = _number(loss, targets), getattr(loss, "weight", None)
    if weights is None or not _divides_by_weights(loss) or not is_classification(loss, targets):
        return number, number
    counted = targets[0][targets[0] != ignored_target(loss)].cpu()
    of_classes = _on_host(weights, weights._version)
    return (torch.bincount(counted, minlength=len(of_classes)).double() @ of_classes).item(), number


def _divides_by_weights(loss: Loss) -> bool:
    """True for torch's own means over classes; a class derived from them may average otherwise."""
    return isinstance(loss, nn.Module) and type(loss).forward in (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward)


@lru_cache(maxsize=4)
def _on_host(weights: Tensor, _version: int) -> Tensor:
    """Class weights, float64, where targets are counted; a device is asked once, as the host waits for its answer."""
    return weights.detach().cpu().double()


def _number(loss: Loss, targets: tuple[Tensor, ...]) -> float:
    count = getattr(loss, "count", None)
    if count is not None:
        found = float(count(*targets))
        whole = found.is_integer()
        if not 0 <= found < math.inf or (counts_tokens(loss) and not whole):
            raise RunError(f"`count` of the loss returned {found:g}; it must be the number of items that are averaged")
        return int(found) if whole else found
    if not is_classification(loss, targets):
        return len(targets[0])
    ignored = ignored_target(loss)
    return targets[0].numel() if ignored is None else int(targets[0].ne(ignored).sum())


def correct_counts(
    loss: Loss, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]
) -> Mapping[str, float | Tensor]:
    """The loss's own metrics as sums, or how often a class was hit; none where there are no classes.

    Raises:
        RunError: the loss's own `metrics` does not return a number for each name.
    """
    metrics: Callable[..., object] | None = getattr(loss, "metrics", None)
    if metrics is None:
        return class_hits(outputs[0], targets[0], ignored_target(loss)) if is_classification(loss, targets) else {}
    found = metrics(*outputs, *targets)
    if not isinstance(found, Mapping):
        raise RunError(f"`metrics` of the loss must return a dict, name -> hits, not a {type(found).__name__}")
    for name, hits in found.items():
        _check_metric(name, hits)
    return found


def _check_metric(name: object, hits: object) -> None:
    if not isinstance(name, str) or name in _RESERVED_NAMES:
        reserved = ", ".join(_RESERVED_NAMES)
        raise RunError(f"`metrics` of the loss: {name!r} cannot name a metric; use a string, but not {reserved}")
    if not isinstance(hits, int | float) and not (isinstance(hits, Tensor) and hits.numel() == 1):
        kind = f"tensor of shape {tuple(hits.shape)}" if isinstance(hits, Tensor) else type(hits).__name__
        raise RunError(f"`metrics` of the loss: {name} is a {kind}, not a number of hits")


def check_hits(name: str, hits: float, count: float) -> None:
    """Checks that a metric of a loss is what its share of the count can be taken of.

    Raises:
        RunError: it is no whole number from 0 to the count.
    """
    if not 0 <= hits <= count or hits != int(hits):
        raise RunError(
            f"`metrics` of the loss: {name}={hits:g} is not a number of hits out of {count}; a metric that is not a "
            "count of hits, such as F1, belongs in `metrics`: docs/metrics.md"
        )


def log_loss_of(
    loss: Loss, mean: float | Tensor, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]
) -> float | Tensor | None:
    """The mean negative log-likelihood, whose exp is the perplexity; None if that is no perplexity.

    It is `mean`, the loss itself, for a plain cross-entropy of sequences, targets (n, positions), or else the loss's
    own `log_loss` if it has one.
    """
    weighted = getattr(loss, "label_smoothing", 0.0) or getattr(loss, "weight", None) is not None
    if not weighted and is_classification(loss, targets) and targets[0].ndim == 2:
        return mean
    own: Callable[..., Tensor] | None = getattr(loss, "log_loss", None)
    return None if own is None else own(*outputs, *targets)
