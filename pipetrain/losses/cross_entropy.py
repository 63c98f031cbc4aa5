"""The cross-entropy of class scores."""

from torch import Tensor, nn
from typing_extensions import override

from pipetrain.number_range import NOT_NEGATIVE, SHARE


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
