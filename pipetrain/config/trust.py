"""Trusted targets of a stored configuration: those that pipetrain's own choices name."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pipetrain.config.choices import choices_of
from pipetrain.config.schema import TARGET, leaves
from pipetrain.errors import ConfigError

_LOSSES = (
    "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HuberLoss", "KLDivLoss", "L1Loss",
    "MSELoss", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss",
    "SmoothL1Loss", "SoftMarginLoss",
)  # fmt: skip
_METRICS = {
    "classification": [
        f"{task}{name}"
        for task in ("Binary", "Multiclass", "Multilabel")
        for name in (
            "AUROC", "Accuracy", "AveragePrecision", "CalibrationError", "CohenKappa", "F1Score", "FBetaScore",
            "HammingDistance", "JaccardIndex", "MatthewsCorrCoef", "Precision", "Recall", "Specificity",
        )
    ],
    "regression": [
        "ConcordanceCorrCoef", "CosineSimilarity", "ExplainedVariance", "KendallRankCorrCoef", "LogCoshError",
        "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError", "MeanSquaredLogError",
        "PearsonCorrCoef", "R2Score", "SpearmanCorrCoef",
    ],
}  # fmt: skip
_GROUPS = {"phases": ("schedule", "method")}
"""The groups whose choices a section holds, where they are not called as it is."""


def check_targets(config: Mapping[str, Any], sections: Collection[str], asked: Collection[str], where: str) -> None:
    """Raises a ConfigError for a target in `sections`, at any depth, that is neither pipetrain's own nor `asked` for.

    A path below `pipetrain.` is not enough: `pipetrain.run.checkpoint.store.shutil.rmtree` is one, too.
    """
    trusted = {*_own(sections), *asked}
    for section in sections:
        for setting, path in _targets(config[section], section):
            if path not in trusted:
                raise ConfigError(
                    f"{where}: {setting}={path} is not pipetrain's own code, and would be called; if you trust it, "
                    "add --trust"
                )


def _own(sections: Collection[str]) -> Iterator[str]:
    for group in {group for section in sections for group in _GROUPS.get(section, (section,))}:
        for choice in choices_of(group):
            yield from (path for _, path in _targets(choice.content, group))
    if "loss" in sections:
        yield from (f"torch.nn.{name}" for name in _LOSSES)
    if "metrics" in sections:
        yield from (f"torchmetrics.{task}.{name}" for task, names in _METRICS.items() for name in names)


def _targets(content: Any, setting: str) -> Iterator[tuple[str, str]]:
    """The targets in a section at any depth: what the setting is called, and its path."""
    for name, value in leaves(content, setting, into_lists=True):
        if TARGET in re.split(r"[.[]", name):
            yield name, str(value)
