"""Profiles in files: those of `pipetrain profile`, and PipeDream's published ones, `graph.txt`.

A line of `graph.txt` is a layer, with times in milliseconds and sizes in bytes, or an edge between two layers.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipetrain.data.files import strict_json
from pipetrain.data.files.regular_file import text_of
from pipetrain.engine.errors import ConfigError
from pipetrain.planning.profile.profile import Profile, ProfiledLayer
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.terminal.text_table import shortened

_SEPARATOR = " -- "
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_SHOWN = 40
"""Characters of a line that a message shows."""


def read_profile(path: Path) -> Profile:
    """The profile in a file of `pipetrain profile`, or in one of PipeDream's `graph.txt`.

    Raises:
        ConfigError: there is no such file, or it holds neither.
    """
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"profile={path}: cannot be read: {reason}; `pipetrain profile` writes one") from None
    try:
        found = (
            Profile.from_json(strict_json.loads(text)) if text.lstrip().startswith(("{", "[")) else parse_graph(text)
        )
    except json.JSONDecodeError as error:
        raise ConfigError(f"profile={path}: line {error.lineno}: no JSON: {error.msg}") from None
    except ValueError as error:
        raise ConfigError(f"profile={path}: no JSON: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"profile={path}: {error}") from None
    if not found.single_device_s:
        raise ConfigError(f"profile={path}: all times are 0, and pipelines are compared by them; give relative times")
    return found


def check_model(settings: Settings, profile: Profile, words: Sequence[str]) -> None:
    """Checks that words of a command line choose no other model than a profile from a file.

    Without a model or a preset among them they choose none, and the profile may name none.

    Raises:
        ConfigError: they do.
    """
    measured, chosen = profile.provenance.get("model"), settings.choices["model"]
    if settings.profile is None or not isinstance(measured, str) or measured == chosen:
        return
    named = [word for prefix in ("model=", "experiment=") for word in words if word.startswith(prefix)]
    if named:
        of = "" if named[0].startswith("model=") else f" of {named[0]}"
        raise ConfigError(
            f"profile={settings.profile}: of model={measured}, not of model={chosen}{of}; `pipetrain profile` measures "
            "this one"
        )


def parse_graph(text: str) -> Profile:
    """The profile that a `graph.txt` describes.

    Nodes called `Input` stand for the data, and their time for its loading; `__getitem__` nodes that nothing follows
    are unused entries of a tuple. PipeDream's own optimizer removes both. The lines of a file may have any
    order, and the sizes of a tuple, `[a; b; c]`, are added up. A layer's `stage_id`, which is part of a solution, is
    not read.

    Raises:
        ConfigError: a line is neither a layer nor an edge, a layer appears twice, or an edge names one without a line.
    """
    layers, edges = _lines(text)
    # lines name layers by their nodes, a profile by indices, which `ordered` puts into an order of computation
    names = sorted(layers.keys() - _removed(layers, edges), key=_natural)
    index = {name: i for i, name in enumerate(names)}
    kept = ((index[a], index[b]) for a, b in edges if a in index and b in index)
    return Profile(tuple(layers[name] for name in names), tuple(kept)).ordered()


def _removed(layers: Mapping[str, ProfiledLayer], edges: Iterable[tuple[str, str]]) -> set[str]:
    """Nodes of the data, and of unused entries of tuples."""
    data = {name for name, layer in layers.items() if layer.label.startswith("Input")}
    used = {source for source, target in edges if target not in data}
    entries = {name for name, layer in layers.items() if layer.label.startswith("__getitem__")}
    return data | entries - used


def _lines(text: str) -> tuple[dict[str, ProfiledLayer], list[tuple[str, str]]]:
    """The layers of a `graph.txt` by node, and its edges, each once.

    An edge is indented and names two nodes; a layer has a node, a label and measurements, and perhaps more:

        node1 -- Conv2d(...) -- forward_compute_time=1.2, backward_compute_time=2.3, ... -- stage_id=0
            node1 -- node2
    """
    layers: dict[str, ProfiledLayer] = {}
    edges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.strip().split(_SEPARATOR)
        if line[:1].isspace() and len(fields) == 2:
            edges.setdefault((fields[0], fields[1]), number)
        elif len(fields) >= 3:
            if fields[0] in layers:
                raise ConfigError(f"line {number}: {fields[0]} has a line already")
            layers[fields[0]] = _layer(fields, f"line {number}")
        elif line.strip():
            raise ConfigError(f"line {number}: {shortened(line, _SHOWN)!r} is neither a layer nor an edge")
    for (source, target), number in edges.items():
        if (end := target if source in layers else source) not in layers:
            raise ConfigError(f"line {number}: the edge {source}{_SEPARATOR}{target} names {end}, which has no line")
    return layers, list(edges)


def _layer(fields: list[str], where: str) -> ProfiledLayer:
    name, label, measured = fields[:3]
    values = dict(part.split("=", 1) for part in measured.split(", ") if "=" in part)
    if missing := [field for field in _FIELDS if field not in values]:
        raise ConfigError(f"{where}: {name} lacks {', '.join(missing)}")
    forward_ms, backward_ms, output, weights = (_number(values[field], f"{where}: {field}") for field in _FIELDS)
    return ProfiledLayer(label, forward_ms / 1000, backward_ms / 1000, round(output), round(weights), round(output))


def _number(text: str, where: str) -> float:
    """A number that is not negative, or the sum of a tuple's."""
    try:
        numbers = [float(part) for part in text.strip("[]").split(";")]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= number < float("inf") for number in numbers):
        raise ConfigError(f"{where}={text}: must be a number of at least 0, or a tuple of them such as [1.0; 2.0]")
    return sum(numbers)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts node9 before node10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
