"""The class labels and token ids that a model knows, and checks of samples against them."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from pipetrain.data.interface import DataSet, Split
from pipetrain.data.samples import sample_of, target_of
from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.engine.tensors import Tensors

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class LabelRange:
    """The labels that a model with an output for each class can learn: 0 to classes - 1.

    Attributes:
        split: `train` or `eval`.
        classes: outputs of the model.
        ignored: the label that the loss leaves out; None for none.
        known: classes that the data object says there are, if it does.
        setting: of the model's outputs, if there is one.
    """

    split: str
    classes: int
    ignored: int | None = None
    known: int | None = None
    setting: str | None = None

    def outside(self, labels: Tensor) -> int | None:
        """The first sample, counted from 0, that has another label."""
        low, high = labels.aminmax()
        if low >= 0 and high < self.classes:
            return None
        wrong = ((labels < 0) | (labels >= self.classes)) & (labels != self.ignored)
        return int(wrong.nonzero()[0, 0]) if wrong.any() else None

    def check(self, labels: Tensor, indices: Sequence[int]) -> None:
        """Raises a ConfigError for a label that is out of range; values that are no whole numbers are no labels."""
        if labels.dtype not in _WHOLE or not labels.numel():
            return
        first = self.outside(labels)
        if first is None:
            return
        found = labels[first].flatten()
        low, high = found[found != self.ignored].aminmax()
        label = int(low if low < 0 else high)
        known = "" if self.known is None else f"; the data object says that there are {self.known} classes"
        more = f", or give the model more outputs: {self.setting}={label + 1}" if self.setting and label >= 0 else ""
        raise ConfigError(
            f"dataset: sample {indices[first]} of `{self.split}` has the label {label}, and the model's {self.classes} "
            f"outputs are for the labels 0 to {self.classes - 1}{known}; correct the label{more}"
        )


def class_count(source: Any) -> int | None:
    """Number of classes that a data object or a split declares, by a number or their names; None if it does not."""
    classes = DataSet(source).classes
    if is_whole(classes):
        return classes
    return len(classes) if isinstance(classes, Sized) and not isinstance(classes, str) else None


def known_labels(split: Any) -> Tensor | None:
    """Labels of all samples, in order: whole numbers (samples, ...). None without labels, or if samples must be read.

    They come from `targets`, as in torchvision's data sets, from `target(i)`, or from the last tensor of a
    `TensorDataset`. `label_of` says what a sample's label is, as a data set may transform its `targets` when it reads.
    """
    if isinstance(split, Subset):
        inner = known_labels(split.dataset)
        return None if inner is None else inner[torch.as_tensor(split.indices, dtype=torch.int64)]
    if isinstance(split, TensorDataset):
        stored: Any = split.tensors[-1]
    elif (stored := Split(split).targets) is None and Split(split).target is not None:
        stored = [target_of(split, index) for index in range(len(split))]
    labels = _as_tensor(stored)
    return labels if labels is not None and isinstance(split, Sized) and len(labels) == len(split) else None


def label_of(split: Any, index: int) -> Tensor | None:
    """The label of one sample, which is read; None if its target is not a label."""
    target = target_of(split, index) if Split(split).target is not None else sample_of(split, index)[1]
    return _as_tensor(target)


def _as_tensor(labels: Any) -> Tensor | None:
    try:
        tensor = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        return None
    return tensor if tensor.dtype in _WHOLE and tensor.numel() else None


@dataclass(frozen=True)
class TokenRange:
    """Ids that a model looks up in tables with a row for each, as a language model does with its tokens.

    Attributes:
        split: `train` or `eval`.
        rows: number of an input, counted from 0 -> rows of the smallest table that it goes to.
        known: tokens that the data object says there are, if it does.
    """

    split: str
    rows: Mapping[int, int]
    known: int | None = None

    def check(self, inputs: Tensors, indices: Sequence[int]) -> None:
        """Raises a ConfigError for an id without a row."""
        for number, rows in self.rows.items():
            ids = inputs[number]
            low, high = ids.aminmax() if ids.numel() else (0, 0)
            if low >= 0 and high < rows:
                continue
            where = ((ids < 0) | (ids >= rows)).nonzero()[0].tolist()
            token = int(ids[tuple(where)])
            known = "" if self.known is None else f", and the data set's {self.known}"
            larger = f"correct it, or make a model for {max(token + 1, self.known or 0)}"
            raise ConfigError(
                f"dataset: sample {indices[where[0]]} of `{self.split}` has the token id {token}; the model's "
                f"vocabulary has {rows} tokens, 0 to {rows - 1}{known}; {larger if token >= 0 else 'correct the id'}"
            )
