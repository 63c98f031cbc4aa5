"""The cross-entropy of the next token."""

from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from pipetrain.errors import ConfigError
from pipetrain.number_range import SHARE


class TokenCrossEntropy(nn.Module):
    """Cross-entropy of token scores, averaged over the tokens that are not padding.

    Evaluations report `perplexity`, exp of the mean negative log-likelihood without smoothing, and how often the token
    of the highest score is the target (`top1`).

    Args:
        label_smoothing: the share of the target that is spread over the vocabulary, from 0 to 1.
        ignore_index: the target that counts for nothing, such as that of padding; None: all targets count.

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
        # counted where they are: the host of a device would wait for the number
        return total / (targets.numel() if self.ignore_index is None else self._counted(targets).clamp(min=1))

    def _counted(self, targets: Tensor) -> Tensor:
        assert self.ignore_index is not None
        return targets.ne(self.ignore_index).sum()

    def count(self, targets: Tensor) -> int:
        """The tokens that the mean runs over."""
        return targets.numel() if self.ignore_index is None else int(self._counted(targets))

    def metrics(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """`top1`: hits, to be divided by the count of tokens."""
        hits = logits.argmax(-1) == targets
        return {"top1": (hits if self.ignore_index is None else hits & targets.ne(self.ignore_index)).sum()}
