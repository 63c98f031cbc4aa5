"""Labels and token ids of the data set, against the outputs and the embedding tables of the model."""

import time
from dataclasses import replace
from typing import Any

from pipetrain.engine.data.fetch import Fetch
from pipetrain.engine.data.interface import Split
from pipetrain.engine.data.loader import Loader
from pipetrain.engine.data.ranges import LabelRange, TokenRange, class_count, known_labels, label_of
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.losses import Loss, ignored_target, is_classification, number_of_classes
from pipetrain.engine.seeding import python_generators_kept
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.training.builders.data import Data
from pipetrain.runner.training.checks.dry_run import DryRun


def label_range(model: Target, dataset: Any, trial: DryRun, loss: Loss) -> LabelRange | None:
    """The labels that the model can learn; None if the loss is not over classes."""
    scores = trial.outputs[0]
    if len(trial.outputs) > 1 or scores.ndim < 2 or not is_classification(loss, trial.targets):
        return None
    setting = "model.classes" if "classes" in model.parameters() else None
    return LabelRange("train", number_of_classes(loss, scores), ignored_target(loss), class_count(dataset), setting)


def check_labels(settings: Settings, data: Data, trial: DryRun, labels: LabelRange) -> None:
    """Compares the classes of the data set, and the labels of the first minibatch, with the outputs of the model.

    Raises:
        ConfigError: one is out of range, the data set has more classes than the model outputs, or either has only one.
    """
    known, model = class_count(data.dataset), settings.model.target
    if known is not None and known > labels.classes:
        larger = f"; model.classes={known} works" if labels.setting else ""
        raise ConfigError(
            f"{model.setting}: {labels.classes} outputs, and the data object says that "
            f"there are {known} classes{larger}"
        )
    if labels.classes < 2:
        follows = "classes" in model.parameters(required=True) and model.options.get("classes") is None
        if known is None and not follows:
            raise ConfigError(f"{model.setting}: 1 output; a cross-entropy needs one for each class, 2 for two classes")
        raise ConfigError("dataset: all samples are of one class, so there is nothing to learn; two or more work")
    labels.check(trial.all_targets[0], trial.indices)


def _check_stored_labels(loader: Loader, labels: LabelRange) -> bool:
    """Checks all labels of a split if no sample must be read for that; returns True if so."""
    known = known_labels(loader.dataset)
    if known is None:
        return False
    index = labels.outside(known[: loader.samples_per_epoch])
    # the data set may change its labels when it reads them
    label = None if index is None else label_of(loader.dataset, index)
    if index is not None and label is not None:
        labels.check(label[None], [index])
    return True


def check_vocabulary(settings: Settings, tokens: TokenRange) -> None:
    """Compares the data set's vocabulary, if it declares one, with the model's.

    Raises:
        ConfigError: the model's is smaller.
    """
    rows = min(tokens.rows.values())
    if tokens.known is not None and tokens.known > rows:
        raise ConfigError(
            f"{settings.model.target.setting}: its vocabulary has {rows} tokens, and that of the data set "
            f"{tokens.known}; make a model for {tokens.known}"
        )


_SECONDS = 0.5
"""Time to read samples of a split."""


def check_samples(settings: Settings, data: Data, labels: LabelRange | None, tokens: TokenRange | None) -> None:
    """Checks all labels available without reading samples, and reads some samples only if that can show more.

    Files may be damaged, and a label or token id out of range. The remaining samples are checked when they are read.

    Raises:
        ConfigError: a label or token id is out of range.
        DataError: a sample cannot be read.
    """
    splits = {"train": data.train, "eval": data.evaluation} if settings.eval.every_epochs else {"train": data.train}
    for split, loader in splits.items():
        of_split, ids = labels and replace(labels, split=split), tokens and replace(tokens, split=split)
        files = Split(loader.dataset).reads_files
        unknown_labels = of_split is not None and not _check_stored_labels(loader, of_split)
        inputs = files or (ids is not None and ids.known is None)
        targets = files or unknown_labels
        if inputs or targets:
            fetch = Fetch(loader.dataset, loader.seed, inputs=inputs, targets=targets, labels=of_split, tokens=ids)
            _read_some(fetch, loader.samples_per_epoch)


def _read_some(fetch: Fetch, samples: int) -> None:
    """Reads the first samples, as many as there is time for."""
    end = time.monotonic() + _SECONDS
    # nor may the numbers that a data set draws elsewhere depend on the time
    with python_generators_kept():
        for index in range(samples):
            fetch(0, [index])
            if time.monotonic() > end:
                break
