"""Classes and functions that have moved within pipetrain, so that stored runs and users' scripts still find them."""

from typing import Any

from pipetrain.config.schema import TARGET

MOVED: dict[str, str] = {}
"""Former path -> present path. An entry stays for as long as runs that name the former path are to load."""


def with_present_paths(content: Any) -> Any:
    """A copy of a configuration, or of part of one, in which every moved target has its present path."""
    if isinstance(content, dict):
        return {
            key: MOVED.get(value, value) if key == TARGET and isinstance(value, str) else with_present_paths(value)
            for key, value in content.items()
        }
    return [with_present_paths(each) for each in content] if isinstance(content, list) else content
