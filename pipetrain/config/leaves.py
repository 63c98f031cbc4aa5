"""The values at the ends of a nested configuration."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(content: Any, name: str = "", *, into_lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Name -> value of every setting below `name`.

    Args:
        content: a section, or part of one.
        name: what it is called on the command line; "" for the whole configuration.
        into_lists: True if the entries of lists are looked into, under names such as `phases[0].steps`.
    """
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key), into_lists=into_lists)
    elif into_lists and isinstance(content, list):
        for index, value in enumerate(content):
            yield from leaves(value, f"{name}[{index}]", into_lists=into_lists)
    else:
        yield name, content
