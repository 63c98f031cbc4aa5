"""Whether the model has an output for every label of the data set."""

from typing import Any

from pipetrain.config.instantiate import Target
from pipetrain.config.settings import Settings
from pipetrain.data.labels import LabelRange, class_count, known_labels, label_of
from pipetrain.data.loader import Loader
from pipetrain.errors import ConfigError
from pipetrain.losses import Loss, classes_of, ignored_of, of_classes
from pipetrain.run.build.data import Data
from pipetrain.run.trial import Trial


def label_range(model: Target, dataset: Any, trial: Trial, loss: Loss) -> LabelRange | None:
    """The labels that the model can learn; None where the loss is not over classes."""
    scores = trial.outputs[0]
    if len(trial.outputs) > 1 or scores.ndim < 2 or not of_classes(loss, trial.targets):
        return None
    setting = "model.classes" if "classes" in model.parameters() else None
    return LabelRange("train", classes_of(loss, scores), ignored_of(loss), class_count(dataset), setting)


def check_labels(settings: Settings, data: Data, trial: Trial, labels: LabelRange) -> None:
    """Holds the classes of the data set, and the labels of the first minibatch, against the outputs of the model.

    Raises:
        ConfigError: one is out of range, or the data set has more classes than the model outputs, or only one.
    """
    known = class_count(data.dataset)
    if known is not None and known > labels.classes:
        larger = f"; model.classes={known} works" if labels.setting else ""
        raise ConfigError(
            f"model._target_={settings.model.target.path}: {labels.classes} outputs, and the data object says that "
            f"there are {known} classes{larger}"
        )
    if labels.classes < 2:
        raise ConfigError("dataset: all samples are of one class, so there is nothing to learn; two or more work")
    labels.check(trial.all_targets[0], trial.indices)


def check_known_labels(loader: Loader, labels: LabelRange) -> bool:
    """Looks at all labels of a split where none must be read for that, and says whether that is so.

    Raises:
        ConfigError: one is out of range.
    """
    known = known_labels(loader.dataset)
    if known is None:
        return False
    index = labels.outside(known[: loader.samples_per_epoch])
    # the data set may change its labels when it reads them
    label = None if index is None else label_of(loader.dataset, index)
    if index is not None and label is not None:
        labels.check(label[None], [index])
    return True
