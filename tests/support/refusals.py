"""Tables of what is refused, by what the message has to name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from pipetrain.engine.errors import ConfigError


def rows(table: Mapping[str, Iterable[Callable[[], object]]]) -> list[tuple[str, Callable[[], object]]]:
    """The calls of a table one by one, each with the pattern that its message has to match."""
    return [(named, call) for named, calls in table.items() for call in calls]


def assert_refused(named: str, call: Callable[..., object], *args: Any, **options: Any) -> None:
    """The call with these arguments must end in a `ConfigError` of one line that matches `named`."""
    with pytest.raises(ConfigError, match=named) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
