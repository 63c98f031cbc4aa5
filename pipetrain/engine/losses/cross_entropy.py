"""The cross-entropy of class scores, and of the next token."""

from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.number_range import NOT_NEGATIVE, SHARE


class CrossEntropy(nn.Module):
    """Mean cross-entropy of class scores; evaluations also count top-1 and top-5 hits.

    Args:
        label_smoothing: torch's, from 0 to 1.
        auxiliary: the weight of each auxiliary head's loss relative to the model's own; 0.3 is GoogLeNet's (section 5).

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
        """Scores (n, classes, ...), then scores of auxiliary heads, if any, and targets to a scalar.

        Targets are classes (n, ...), or probabilities of the classes (n, classes, ...), as for mixed images.
        """
        *heads, target = further
        loss = self._mean(scores, target)
        for head in heads:
            loss = loss + self.auxiliary * self._mean(head, target)
        return loss

    def _mean(self, scores: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores, target, label_smoothing=self.label_smoothing)

    def count(self, target: Tensor) -> int:
        """The targets that the mean runs over."""
        return target.numel() // (target.shape[1] if target.is_floating_point() else 1)

    def metrics(self, scores: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Name -> hits, to be divided by the count of targets; top-5 only where there are more than five classes."""
        return class_hits(scores, target)


def class_hits(scores: Tensor, target: Tensor, ignored: int | None = None) -> dict[str, Tensor]:
    """Number of targets that have the highest score, and one of the five highest if there are more classes.

    Scores are (n, classes, ...), targets (n, ...) whole numbers, of which `ignored` does not count, or probabilities
    (n, classes, ...), of which the highest one counts.
    """
    classes = scores.shape[1]
    if target.is_floating_point():
        target = target.argmax(1)
    ranked = scores.topk(min(5, classes), dim=1).indices
    hits = ranked == target.unsqueeze(1)
    if ignored is not None:
        hits &= target.ne(ignored).unsqueeze(1)
    metrics = {"top1": hits[:, 0].sum()}
    if classes > 5:
        metrics["top5"] = hits.sum()
    return metrics


class TokenCrossEntropy(nn.Module):
    """Cross-entropy of token scores, averaged over the tokens that are not padding.

    Evaluations report `perplexity`, exp of the mean negative log-likelihood without smoothing, and how often the token
    of the highest score is the target (`top1`).

    Args:
        label_smoothing: the share of the target that is spread over the vocabulary, from 0 to 1.
        ignore_index: the target that counts for nothing, such as padding; None: all targets count.

    Raises:
        ConfigError: `label_smoothing` is out of its range.
    """

    unit: ClassVar[str] = "tokens"

    def __init__(self, label_smoothing: float = 0.0, ignore_index: int | None = None) -> None:
        super().__init__()
        SHARE.check("loss.label_smoothing", label_smoothing)
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index

    @override
    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Logits (n, positions, vocabulary) and targets (n, positions) to a scalar, 0 where all is padding.

        Raises:
            ConfigError: they have other shapes.
        """
        if logits.ndim < 3 or logits.shape[:-1] != targets.shape:
            raise ConfigError(
                f"the cross-entropy of tokens takes outputs (n, positions, vocabulary) and targets (n, positions), not "
                f"{tuple(logits.shape)} and {tuple(targets.shape)}; loss=cross_entropy takes one class for each sample"
            )
        return self._mean(logits, targets, self.label_smoothing)

    def log_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean negative log-likelihood of the targets."""
        return self._mean(logits, targets, 0.0)

    def _mean(self, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        total = nn.functional.cross_entropy(
            logits.flatten(0, -2),
            targets.flatten(),
            ignore_index=-100 if self.ignore_index is None else self.ignore_index,
            reduction="sum",
            label_smoothing=smoothing,
        )
        count = self._count(targets)
        return total / (count if isinstance(count, int) else count.clamp(min=1))

    def _count(self, targets: Tensor) -> int | Tensor:
        """Counted where the targets are, as the host of a device would wait for the number."""
        return targets.numel() if self.ignore_index is None else targets.ne(self.ignore_index).sum()

    def count(self, targets: Tensor) -> int:
        """The tokens that the mean runs over."""
        return int(self._count(targets))

    def metrics(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """`top1`: hits, to be divided by the count of tokens."""
        hits = logits.argmax(-1) == targets
        return {"top1": (hits if self.ignore_index is None else hits & targets.ne(self.ignore_index)).sum()}
