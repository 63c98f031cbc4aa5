"""Samples of a user's own data set: pairs, or dicts seen as pairs; errors of its code name what was read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipetrain.data.splits import class_names, in_tensors
from pipetrain.engine.errors import ConfigError, DataError, RunError
from pipetrain.engine.failure import described

_TARGETS = ("labels", "label", "target", "targets", "y")
"""Usual keys of the target in samples that are dicts."""
_OUR_WORDS = (ConfigError, DataError, RunError)


@contextmanager
def naming_errors(what: str) -> Iterator[None]:
    """Raises a DataError for an exception of a data set's code; names `what`, and the file and line of that code."""
    try:
        yield
    except _OUR_WORDS:
        raise
    except (Exception, SystemExit) as error:  # no GeneratorExit: by that Python ends this very function after Ctrl-C
        raise DataError(f"dataset: {what}: {described(error)}") from error


def sample_of(split: Any, index: int, read: Callable[[int], Any] | None = None) -> Sequence[Any]:
    """A sample of a split, input and target; `read` takes the place of `split[index]`.

    Raises:
        ConfigError: it is no such pair.
        DataError: reading it raised an exception.
    """
    with naming_errors(f"sample {index}"):
        sample = split[index] if read is None else read(index)
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample
    if isinstance(sample, Mapping) and sample:
        names = [str(name) for name in sample]
        likely = next((name for name in names if name in _TARGETS), names[-1])
        raise ConfigError(
            f"dataset: sample {index} must be an (input, target) pair, not a {type(sample).__name__} of "
            f"{', '.join(names)}; dataset.target_key={likely} makes {likely} the target, and the rest the input"
        )
    kind = f"{type(sample).__name__} of {len(sample)}" if isinstance(sample, tuple | list) else type(sample).__name__
    raise ConfigError(f"dataset: sample {index} must be an (input, target) pair, not a {kind}")


def target_of(split: Any, index: int) -> Any:
    """The target that `target(index)` of a split returns.

    Raises:
        DataError: it raised an exception.
    """
    with naming_errors(f"target({index})"):
        return split.target(index)


Key = str | Sequence[str]
"""Key of a value in a dict, or keys of several, which are taken as a dict."""


class _Wrapper:
    """Has all attributes of the object that it wraps."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_wrapped":  # those that Python looks for in a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)


def class_of(dataset: Any) -> str:
    """Name of the class of a data object as its author knows it."""
    return type(dataset._wrapped if isinstance(dataset, _Wrapper) else dataset).__name__


class NamedSamples(_Wrapper):
    """A split whose samples are dicts, as one of pairs.

    Args:
        split: map-style.
        target: keys of the target.
        inputs: keys of the input; None: all other keys, as a dict if there are several.

    The samples of Hugging Face `datasets` are tensors unless they have another format, and a `ClassLabel` target gives
    `classes`.
    """

    on_device = None  # of the wrapped split, whose samples are dicts

    def __init__(self, split: Any, target: Key, inputs: Key | None = None) -> None:
        super().__init__(in_tensors(split))
        if (names := class_names(split, target)) is not None:
            self.classes = names
        self._target = target
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._wrapped)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        sample = self._wrapped[index]
        if not isinstance(sample, Mapping):
            raise ConfigError(
                f"dataset.target_key={self._target}: needs samples that are dicts, but sample {index} is a "
                f"{type(sample).__name__}; leave it out"
            )
        target = _taken(sample, self._target, "target_key", index)
        if self._inputs is not None:
            return _taken(sample, self._inputs, "input_key", index), target
        used = [self._target] if isinstance(self._target, str) else self._target
        rest = [name for name in sample if name not in used]
        if not rest:
            raise ConfigError(f"dataset.target_key={self._target}: leaves no input in sample {index}")
        return _taken(sample, rest[0] if len(rest) == 1 else rest, "input_key", index), target


class NamedData(_Wrapper):
    """A data object whose samples are dicts, as one of pairs."""

    def __init__(self, dataset: Any, target: Key, inputs: Key | None = None) -> None:
        super().__init__(dataset)
        self.train = NamedSamples(dataset.train, target, inputs)
        self.eval = NamedSamples(dataset.eval, target, inputs)


def _taken(sample: Mapping[Any, Any], key: Key, setting: str, index: int) -> Any:
    for name in (key,) if isinstance(key, str) else key:
        if name not in sample:
            has = ", ".join(map(str, sample)) or "nothing"
            raise ConfigError(f"dataset.{setting}={name}: sample {index} has no {name}; it has {has}")
    return sample[key] if isinstance(key, str) else {name: sample[name] for name in key}
