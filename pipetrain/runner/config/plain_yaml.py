"""A reader of untrusted YAML: fast, and without aliases, as a few lines of these could expand beyond memory."""

import re
from typing import Any

import yaml

_DEEPEST = 50
"""Mappings and lists within each other."""
_FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml, 40 times slower


class _Loader(_FAST):  # type: ignore[misc]
    """Values as OmegaConf reads them: 1e-3 is a number, and a date is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (of the base, too)
        first: [(tag, pattern) for tag, pattern in each if not tag.endswith(":timestamp")]
        for first, each in _FAST.yaml_implicit_resolvers.items()
    }


_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def load(text: str) -> Any:
    """The content.

    Raises:
        ValueError: it has aliases, or is nested deeper than any file that pipetrain writes.
        yaml.YAMLError: it is not valid YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_FAST):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has YAML aliases; their content must be written out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
    return yaml.load(text, Loader=_Loader)
