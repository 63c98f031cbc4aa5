"""Losses: what a minibatch is averaged over, and which metrics an evaluation reports."""

from pipetrain.engine.losses.cross_entropy import CrossEntropy, TokenCrossEntropy
from pipetrain.engine.losses.loss import (
    Loss,
    StepLoss,
    check_hits,
    check_mean,
    correct_counts,
    count_of,
    counts_of,
    counts_tokens,
    ignored_target,
    is_classification,
    log_loss_of,
    microbatch_loss,
    microbatch_weight,
    number_of_classes,
    on_device,
    step_loss,
)
from pipetrain.engine.losses.metrics import NO_METRICS, Metric, Metrics, RunningMetrics, without_exchanges

__all__ = [
    "NO_METRICS",
    "CrossEntropy",
    "Loss",
    "Metric",
    "Metrics",
    "RunningMetrics",
    "StepLoss",
    "TokenCrossEntropy",
    "check_hits",
    "check_mean",
    "correct_counts",
    "count_of",
    "counts_of",
    "counts_tokens",
    "ignored_target",
    "is_classification",
    "log_loss_of",
    "microbatch_loss",
    "microbatch_weight",
    "number_of_classes",
    "on_device",
    "step_loss",
    "without_exchanges",
]
