"""Trusted targets of a stored configuration: those that pipetrain's own choices name."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pipetrain.config.choices import choices_of
from pipetrain.config.schema import TARGET, leaves
from pipetrain.errors import ConfigError

_LIBRARIES = {
    "loss": [
        f"torch.nn.{name}"
        for name in (
            "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "GaussianNLLLoss", "HuberLoss", "KLDivLoss", "L1Loss",
            "MSELoss", "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss",
            "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss",
        )
    ],
    "metrics": [
        f"torchmetrics.classification.{task}{name}"
        for task in ("Binary", "Multiclass", "Multilabel")
        for name in (
            "AUROC", "Accuracy", "AveragePrecision", "CalibrationError", "CohenKappa", "F1Score", "FBetaScore",
            "HammingDistance", "JaccardIndex", "MatthewsCorrCoef", "Precision", "Recall", "Specificity",
        )
    ] + [
        f"torchmetrics.regression.{name}"
        for name in (
            "ConcordanceCorrCoef", "CosineSimilarity", "ExplainedVariance", "KendallRankCorrCoef", "LogCoshError",
            "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError", "MeanSquaredLogError",
            "PearsonCorrCoef", "R2Score", "SpearmanCorrCoef",
        )
    ],
}  # fmt: skip
"""Section -> trusted targets of libraries."""
_GROUPS = {"phases": ("schedule", "method")}
"""Section -> the groups whose choices it holds, if their name is another."""


def check_targets(config: Mapping[str, Any], sections: Collection[str], asked: Collection[str], where: str) -> None:
    """Raises a ConfigError for a target in `sections`, at any depth, that is neither pipetrain's own nor `asked` for.

    A path below `pipetrain.` is not enough: `pipetrain.run.checkpoint.store.shutil.rmtree` is one, too.
    """
    trusted = set(asked)
    for section in sections:
        trusted.update(_LIBRARIES.get(section, ()))
        for group in _GROUPS.get(section, (section,)):
            trusted.update(path for choice in choices_of(group) for _, path in _targets(choice.content, group))
    for section in sections:
        for setting, path in _targets(config[section], section):
            if path not in trusted:
                raise ConfigError(
                    f"{where}: {setting}={path} is not pipetrain's own code, and would be called; if you trust it, "
                    "add --trust"
                )


def _targets(content: Any, setting: str) -> Iterator[tuple[str, str]]:
    """The targets in a section at any depth: what the setting is called, and its path."""
    for name, value in leaves(content, setting, into_lists=True):
        if TARGET in re.split(r"[.[]", name):
            yield name, str(value)
