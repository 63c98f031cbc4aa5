"""Candidates for the end of a command line, from the parsers of the subcommands."""

import argparse
import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipetrain.commands import add_config_dir

Parsers = Mapping[str, argparse.ArgumentParser]


def candidates(line: str, commands: Parsers) -> list[str]:
    """The words that may take the place of the last one of `line`; whole ones end in a blank.

    The shell is in the middle of a prompt: whatever goes wrong, nothing is offered and nothing is said.
    """
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(Exception, SystemExit):
        *before, word = line.split() if line[-1:].strip() else [*line.split(), ""]
        found = _after(before[1:], word, commands)
        return sorted({each if each.endswith(("=", ".", "/")) else f"{each} " for each in found})
    return []


def _after(before: Sequence[str], word: str, commands: Parsers) -> list[str]:
    if not before:
        return _matching(("--help", "--version") if word.startswith("-") else commands, word)
    parser = commands[before[0]]
    nested = _subcommands(parser)
    if nested and (before[1:] or not word.startswith("-")):
        return _after(before[1:], word, nested)
    return _arguments(parser, before[1:], word)


def _arguments(parser: argparse.ArgumentParser, before: Sequence[str], word: str) -> list[str]:
    flags = {name: action for action in parser._actions for name in action.option_strings}
    if before and (action := flags.get(before[-1])) and action.nargs != 0:
        return _matching(map(str, action.choices or ()), word)
    if word.startswith("-"):
        return _matching((name for name in flags if name.startswith("--")), word)
    positional = [action for action in parser._actions if not action.option_strings]
    if parser.get_default("takes_settings"):
        return _settings(before, word, sum(action.nargs is None for action in positional))
    return _matching((str(choice) for action in positional for choice in action.choices or ()), word)


def _settings(before: Sequence[str], word: str, first: int) -> list[str]:
    """Settings, of a command that takes them after other words, such as the RUN of `eval`."""
    words = [each for each in before if not each.startswith("-")]
    if len(words) < first:
        return []
    from pipetrain.commands.completion.setting_candidates import settings

    return settings([each for each in words[first:] if "=" in each], word, _config_dir(before))


def _config_dir(before: Sequence[str]) -> Path | None:
    """The folder of `--config-dir`, if it is given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_config_dir(parser)
    folder: Path | None = parser.parse_known_args(before)[0].config_dir
    return folder and folder.expanduser()


def _subcommands(parser: argparse.ArgumentParser) -> Parsers:
    nested = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(nested, {})


def _matching(words: Iterable[str], start: str) -> list[str]:
    return [each for each in words if each.startswith(start)]
