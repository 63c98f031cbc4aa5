"""Losses: what a minibatch is averaged over, and which metrics an evaluation reports."""

from pipetrain.losses.average import StepLoss, percent, share, step_loss
from pipetrain.losses.cross_entropy import CrossEntropy
from pipetrain.losses.loss import Loss, on_device
from pipetrain.losses.measures import (
    check_hits,
    classes_of,
    count_of,
    counts_tokens,
    hits_of,
    ignored_of,
    log_loss_of,
    of_classes,
)
from pipetrain.losses.metrics import NO_METRICS, Evaluated, Metric, Metrics
from pipetrain.losses.token_cross_entropy import TokenCrossEntropy

__all__ = [
    "NO_METRICS",
    "CrossEntropy",
    "Evaluated",
    "Loss",
    "Metric",
    "Metrics",
    "StepLoss",
    "TokenCrossEntropy",
    "check_hits",
    "classes_of",
    "count_of",
    "counts_tokens",
    "hits_of",
    "ignored_of",
    "log_loss_of",
    "of_classes",
    "on_device",
    "percent",
    "share",
    "step_loss",
]
