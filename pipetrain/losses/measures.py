"""What can be measured with a loss: its count, hits and log-likelihood, for those of torch and of users, too."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from pipetrain.errors import RunError
from pipetrain.losses.cross_entropy import CrossEntropy, class_hits
from pipetrain.losses.loss import Loss
from pipetrain.losses.token_cross_entropy import TokenCrossEntropy

_OTHERS = ("loss", "perplexity", "s")
"""Names that records give to other numbers of an evaluation."""


def of_classes(loss: Loss, targets: tuple[Tensor, ...]) -> bool:
    """Whether the loss is a cross-entropy, ours or torch's, of targets that are classes or tokens."""
    whole = len(targets) == 1 and not (targets[0].is_floating_point() or targets[0].is_complex())
    return whole and isinstance(loss, CrossEntropy | TokenCrossEntropy | nn.CrossEntropyLoss | nn.NLLLoss)


def classes_of(loss: Loss, scores: Tensor) -> int:
    """The classes, or tokens of the vocabulary, that the scores are of."""
    return scores.shape[-1 if isinstance(loss, TokenCrossEntropy) else 1]


def ignored_of(loss: Loss) -> int | None:
    """The target that a loss leaves out of its mean."""
    ignored: int | None = getattr(loss, "ignore_index", None)
    return ignored


def counts_tokens(loss: Loss) -> bool:
    """Whether what the loss counts are tokens."""
    return getattr(loss, "unit", None) == "tokens"


def count_of(loss: Loss, targets: tuple[Tensor, ...]) -> int:
    """What the loss averages over: its own `count` of the targets, those that are classes, or the samples.

    Raises:
        RunError: its own `count` is negative.
    """
    count = getattr(loss, "count", None)
    if count is not None:
        found = int(count(*targets))
        if found < 0:
            raise RunError(f"`count` of the loss returned {found}; it must be the number of items that are averaged")
        return found
    if not of_classes(loss, targets):
        return len(targets[0])
    ignored = ignored_of(loss)
    return targets[0].numel() if ignored is None else max(1, int(targets[0].ne(ignored).sum()))


def hits_of(loss: Loss, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Mapping[str, float | Tensor]:
    """The loss's own metrics as sums, or how often a class was hit; none where there are no classes.

    Raises:
        RunError: the loss's own `metrics` does not return a number for each name.
    """
    metrics: Callable[..., object] | None = getattr(loss, "metrics", None)
    if metrics is None:
        return class_hits(outputs[0], targets[0], ignored_of(loss)) if of_classes(loss, targets) else {}
    found = metrics(*outputs, *targets)
    if not isinstance(found, Mapping):
        raise RunError(f"`metrics` of the loss must return a dict, name -> hits, not a {type(found).__name__}")
    for name, hits in found.items():
        if not isinstance(name, str) or name in _OTHERS:
            raise RunError(
                f"`metrics` of the loss: {name!r} cannot name a metric; use a string, but not {', '.join(_OTHERS)}"
            )
        if not isinstance(hits, int | float) and not (isinstance(hits, Tensor) and hits.numel() == 1):
            kind = f"tensor of shape {tuple(hits.shape)}" if isinstance(hits, Tensor) else type(hits).__name__
            raise RunError(f"`metrics` of the loss: {name} is a {kind}, not a number of hits")
    return found


def check_hits(name: str, hits: float, count: int) -> None:
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
    """The mean negative log-likelihood, whose exp is the perplexity; None where that is no perplexity.

    Args:
        loss: one with its own `log_loss`, or a plain cross-entropy of sequences, targets (n, positions).
        mean: what it gives.
        outputs: what the model makes of them.
        targets: of the same samples.
    """
    weighted = getattr(loss, "label_smoothing", 0.0) or getattr(loss, "weight", None) is not None
    if not weighted and of_classes(loss, targets) and targets[0].ndim == 2:
        return mean
    own: Callable[..., Tensor] | None = getattr(loss, "log_loss", None)
    return None if own is None else own(*outputs, *targets)
