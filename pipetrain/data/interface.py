"""The interface of a data set: the members of its splits and of the object that holds them, required and optional.

Any object with the required members is a data set, such as a `torch.utils.data.Dataset` with a length. It inherits from
no class of this module. `Split` and `DataSet` read the members of such an object, and return the default of an optional
one that it lacks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class MapStyle(Protocol):
    """The required members of a split: it is read by index."""

    def __len__(self) -> int:
        """Number of samples."""

    def __getitem__(self, index: int, /) -> Any:
        """Sample `index`, an (input, target) pair. Each side is anything that torch's `default_collate` accepts."""


@dataclass(frozen=True)
class _Members:
    given: Any

    @property
    def classes(self) -> Any:
        """Number of classes, or their names; None by default."""
        return self._member("classes")

    def _member(self, name: str) -> Any:
        return getattr(self.given, name, None)


@dataclass(frozen=True)
class Split(_Members):
    """The optional members of a split.

    Attributes:
        given: the split, a `MapStyle`.
    """

    @property
    def target(self) -> Callable[[int], Any] | None:
        """`target(i)` returns `split[i][1]` without decoding the input. Without it, whole samples are read."""
        return self._function("target")

    @property
    def stored(self) -> Callable[[int], Any] | None:
        """`stored(i)` returns `split[i]` with the input in its stored form, which `on_device` takes.

        A stage on a GPU reads this instead of `split[i]`: images as bytes, for example, are a quarter of the size of
        images in float32. A split has both members or neither.
        """
        return None if self.on_device is None else self._function("stored")

    @property
    def on_device(self) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
        """`on_device(inputs)` computes the inputs of a minibatch from their stored form, on the device that holds them.

        It takes and returns a tuple of tensors. On the CPU, the bits should be those of `split[i]`.
        """
        return self._function("on_device")

    @property
    def batches(self) -> Callable[[int, int], Any] | None:
        """`batches(batch_size, samples)` returns the minibatches of every epoch, as lists of indices below `samples`.

        Shuffling then changes the order of the minibatches only. Without it, minibatches have `batch_size` samples.
        """
        return self._function("batches")

    @property
    def collate(self) -> Callable[[Sequence[Any]], Any] | None:
        """`collate(pairs)` returns the inputs and targets of a minibatch, for example padded ones.

        Each is a tensor or a tuple of tensors, with one row per sample. Without it, `default_collate` makes them.
        """
        return self._function("collate")

    @property
    def ordered(self) -> bool:
        """True if each minibatch continues the one before it, so that nothing is shuffled. Default: False."""
        return bool(self._member("ordered"))

    @property
    def reads_files(self) -> bool:
        """True if samples are files that may be damaged, so that a run reads some before it starts. Default: False."""
        return bool(self._member("reads_files"))

    @property
    def targets(self) -> Any:
        """Targets of all samples, in order, if they are in memory; None by default."""
        return self._member("targets")

    @property
    def features(self) -> Any:
        """Columns of a split of Hugging Face `datasets`, by name; None by default."""
        return self._member("features")

    @property
    def format(self) -> Any:
        """Output format of a split of Hugging Face `datasets`, with its `type`; None by default."""
        return self._member("format")

    def _function(self, name: str) -> Callable[..., Any] | None:
        found = self._member(name)
        return found if callable(found) else None  # a `target` or `batches` that holds values means something else


@dataclass(frozen=True)
class DataSet(_Members):
    """The optional members of a data object, whose required ones are its splits, `train` and `eval`.

    If the model has parameters `channels`, `classes`, `size`, `vocabulary_size`, `source_vocabulary_size`,
    `target_vocabulary_size`, `joint_vocabulary`, `padding`, `max_length` or `features`, a run takes their values from
    the attributes of the same name.

    Attributes:
        given: the data object.
    """

    @property
    def notes(self) -> Sequence[str]:
        """Lines that a run prints before it trains, for example about samples left out. Default: none."""
        return self._member("notes") or ()

    @property
    def padding(self) -> int | None:
        """Token id of padding, which a loss with `ignore_index=null` ignores; None by default."""
        padding: int | None = self._member("padding")
        return padding

    @property
    def vocabulary(self) -> Any:
        """Vocabulary of a language model, with `encode` and `decode`; None by default."""
        return self._member("vocabulary")

    @property
    def vocabulary_size(self) -> Any:
        """Number of token ids; None by default."""
        return self._member("vocabulary_size")

    @property
    def vocabulary_sha256(self) -> str | None:
        """Hash of everything that gives token ids their meaning, kept in checkpoints; None by default."""
        sha256: str | None = self._member("vocabulary_sha256")
        return sha256

    @property
    def decoding(self) -> Any:
        """Metrics that evaluations compute from the whole model, such as BLEU; None by default.

        An object with `metrics`, their names, and `measure(model, options)`, which returns a `MetricValue` for each.
        It may also have `lower_is_better`, the names of metrics that fall as the model improves, and `problem(chain)`,
        which returns the reason why it cannot decode with a model, or None.
        """
        return self._member("decoding")
