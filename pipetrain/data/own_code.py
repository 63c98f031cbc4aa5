"""The code of a data set, called so that whatever it raises is told with what was asked of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipetrain.errors import ConfigError, DataError, RunError
from pipetrain.failure import described

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


def sample_of(split: Any, index: int) -> Any:
    """A sample of a split.

    Raises:
        DataError: reading it raised an exception.
    """
    with asked_for(f"sample {index}"):
        return split[index]


def target_of(split: Any, index: int) -> Any:
    """What `target(index)` of a split returns.

    Raises:
        DataError: it raised an exception.
    """
    with asked_for(f"target({index})"):
        return split.target(index)
