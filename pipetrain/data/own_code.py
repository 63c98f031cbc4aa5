"""The code of a data set, called so that whatever it raises is told with what was asked of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipetrain.errors import ConfigError, DataError, RunError
from pipetrain.failure import described

_TARGETS = ("labels", "label", "target", "targets", "y")
"""What dicts usually call a target."""
_OUR_WORDS = (ConfigError, DataError, RunError)


@contextmanager
def asked_for(what: str) -> Iterator[None]:
    """Names what a data set was asked for when its code raised an exception.

    Raises:
        DataError: it did; names `what`, the exception, and the file and line of the user's code.
    """
    try:
        yield
    except _OUR_WORDS:
        raise
    except (Exception, SystemExit) as error:
        raise DataError(f"dataset: {what}: {described(error)}") from error


def sample_of(split: Any, index: int) -> Sequence[Any]:
    """A sample of a split, input and target.

    Raises:
        ConfigError: it is no such pair.
        DataError: reading it raised an exception.
    """
    with asked_for(f"sample {index}"):
        sample = split[index]
    return _as_pair(sample, index)


def _as_pair(sample: Any, index: int) -> Sequence[Any]:
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample
    if isinstance(sample, Mapping) and sample:
        names = [str(name) for name in sample]
        likely = next((name for name in names if name in _TARGETS), names[-1])
        raise ConfigError(
            f"dataset: sample {index} must be an (input, target) pair, not a {type(sample).__name__} of "
            f"{', '.join(names)}; dataset.target_key={likely} makes {likely} the target, and the others the input"
        )
    kind = f"{type(sample).__name__} of {len(sample)}" if isinstance(sample, tuple | list) else type(sample).__name__
    raise ConfigError(f"dataset: sample {index} must be an (input, target) pair, not a {kind}")


def target_of(split: Any, index: int) -> Any:
    """What `target(index)` of a split returns.

    Raises:
        DataError: it raised an exception.
    """
    with asked_for(f"target({index})"):
        return split.target(index)
