"""`pipetrain completion SHELL`: the script that makes the Tab key complete commands, flags, settings and choices."""

import argparse
import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from pipetrain.engine.errors import ConfigError, ExitCode
from pipetrain.runner.terminal.arguments import Subparsers, add_config_dir

_BASH = """\
_pipetrain() {
    local line="${COMP_LINE:0:$COMP_POINT}" candidate
    local word="${line##*[[:space:]]}" prefix=""
    # bash itself ends a word at "=", and then wants only what follows
    [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && prefix="${word%"${word##*=}"}"
    COMPREPLY=()
    while IFS= read -r candidate; do
        [[ -n $candidate ]] && COMPREPLY+=("${candidate#"$prefix"}")
    done < <("${COMP_WORDS[0]/#\\~/$HOME}" completion --line "$line" 2> /dev/null)
}
complete -o nospace -o default -F _pipetrain pipetrain
"""

_ZSH = """\
_pipetrain() {
    local -a found whole open
    found=("${(@f)$(${~words[1]} completion --line "${(j: :)words[1,CURRENT]}" 2> /dev/null)}")
    whole=(${(M)found:#* })
    open=(${found:#* })
    (( $#whole )) && compadd -- ${whole% }
    (( $#open )) && compadd -S '' -- $open
    (( $#whole + $#open )) || _files
}
compdef _pipetrain pipetrain
"""

_FISH = """\
function __pipetrain_complete
    set -l found (pipetrain completion --line (commandline -cp | string collect) 2> /dev/null | string trim --right)
    if test -n "$found"
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c pipetrain -f -a '(__pipetrain_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""Shell -> the script with which it asks `pipetrain completion --line` for candidates.

A candidate that ends in a blank is complete; after `=` or `.` the word continues. Without candidates the shell offers
file names.
"""
_Parsers = Mapping[str, argparse.ArgumentParser]
_DESCRIPTION = """\
Prints a script for the shell. To switch completion on in this terminal, or in every one from its start-up file:

  bash  eval "$(pipetrain completion bash)"                in ~/.bashrc
  zsh   eval "$(pipetrain completion zsh)"                 in ~/.zshrc, after compinit
  fish  pipetrain completion fish | source                 in ~/.config/fish/config.fish
"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `completion`."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands and settings in your shell",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", nargs="?", choices=list(SCRIPTS), metavar="SHELL", help=", ".join(SCRIPTS))
    parser.add_argument("--line", help="print what may stand at the end of this command line; the scripts call it")
    parser.set_defaults(carry_out=carry_out, commands=subparsers.choices)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Prints the script, or the candidates for a line.

    Raises:
        ConfigError: no shell is given.
    """
    if options.line is not None:
        print(*candidates(options.line, options.commands), sep="\n")
    elif options.shell is None:
        raise ConfigError(f"pipetrain completion: SHELL is missing; choose from {', '.join(SCRIPTS)}")
    else:
        print(SCRIPTS[options.shell], end="")
    return ExitCode.COMPLETED


def candidates(line: str, commands: _Parsers) -> list[str]:
    """Words that may replace the last one of `line`; complete words end in a blank.

    The shell is in the middle of a prompt: an error has no candidates and no message.
    """
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(Exception, SystemExit):
        *before, word = line.split() if line[-1:].strip() else [*line.split(), ""]
        found = [each for each in _choices(before[1:], word, commands) if each.startswith(word)]
        return sorted({each if each.endswith(("=", ".", "/")) else f"{each} " for each in found})
    return []


def _choices(before: Sequence[str], word: str, commands: _Parsers) -> Iterable[str]:
    """Words that may follow the words `before`, some of which do not begin with `word`."""
    if not before:
        return ("--help", "--version") if word.startswith("-") else commands
    parser, before = commands[before[0]], before[1:]
    subcommands = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if subcommands and (before or not word.startswith("-")):
        return _choices(before, word, subcommands[0])
    return _words_of(parser, before, word)


def _words_of(parser: argparse.ArgumentParser, before: Sequence[str], word: str) -> Iterable[str]:
    """Words that may follow the words `before` of a command, other than its subcommands."""
    flags = {name: action for action in parser._actions for name in action.option_strings}
    flag = flags.get(before[-1]) if before else None
    if flag and flag.nargs != 0:  # its value follows
        return map(str, flag.choices or ())
    if word.startswith("-"):
        return [name for name, each in flags.items() if name[:2] == "--" and each.help != argparse.SUPPRESS]
    positional = [action for action in parser._actions if not action.option_strings]
    if parser.get_default("takes_settings"):
        return _settings_after(before, word, positional)
    return [str(choice) for action in positional for choice in action.choices or ()]


def _settings_after(before: Sequence[str], word: str, positional: Sequence[argparse.Action]) -> list[str]:
    """Settings that may follow the words and flags `before`."""
    first = sum(action.nargs is None for action in positional)  # such as the RUN of `eval`
    words = [each for each in before if not each.startswith("-")]
    if len(words) < first:
        return []
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_config_dir(parser)
    folder: Path | None = parser.parse_known_args(before)[0].config_dir
    return _settings([each for each in words[first:] if "=" in each], word, folder and folder.expanduser())


def _settings(before: Sequence[str], word: str, folder: Path | None) -> list[str]:
    """Settings and choices that begin with `word`, after the settings `before`; `folder` has the user's own choices."""
    from pipetrain.runner.config.checks import TRACKERS
    from pipetrain.runner.config.reference import groups

    name, equals, value = word.partition("=")
    if not equals:
        return list(map(_spelled, _of_hydra(before, word, folder)))
    if values := _values(name):
        return [f"{name}={each}" for each in values]
    # of a list, and of a sweep such as method=gpipe,pip, the last member is completed
    *members, last = value.removeprefix("[").split(",")
    if name == "log.to":
        return [f"{name}=[{','.join([*members, each])}]" for each in TRACKERS if each not in members]
    ends = _names(name, last, folder) if name in groups() else _values_of_hydra(before, f"{name}={last}", folder)
    return [f"{name}={','.join([*members, each])}" for each in ends]


@cache
def _defaults() -> Mapping[str, object]:
    """Setting -> its default."""
    from pipetrain.runner.config.reference import sections

    return {setting.name: setting.default for section in sections() for setting in section.settings}


def _values(name: str) -> Sequence[str]:
    """The values of a setting that has only a few."""
    from pipetrain.runner.config.checks import CHOICES
    from pipetrain.runner.config.choices import all_names
    from pipetrain.runner.config.messages import DIRECTIONS, GROUP

    if name in [f"messages.{direction}" for direction in DIRECTIONS]:
        return sorted(all_names(GROUP))
    return CHOICES.get(name) or (("true", "false") if isinstance(_defaults().get(name), bool) else ())


def _values_of_hydra(before: Sequence[str], word: str, folder: Path | None) -> list[str]:
    """What Hydra offers behind the `=` of a word, except places in a list, such as `0=`."""
    return [each.partition("=")[2] for each in _of_hydra(before, word, folder) if each.count("=") < 2]


def _names(group: str, begin: str, folder: Path | None) -> list[str]:
    """The choices of a group that begin so; of those in a folder of the group, only the folder."""
    from pipetrain.runner.config.choices import all_names

    names = all_names(group) | (all_names(group, folder) if folder is not None else set())
    rests = (each.removeprefix(begin).partition("/") for each in names if each.startswith(begin))
    return [f"{begin}{head}{slash}" for head, slash, _ in rests]


def _of_hydra(before: Sequence[str], word: str, folder: Path | None) -> list[str]:
    """Hydra's own candidates for `word`, with the choices in `folder` as well; after a sweep, for its first run."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    from pipetrain.runner.config.composition import combinations, with_choices_of
    from pipetrain.runner.config.installed import register_configuration
    from pipetrain.runner.config.schema import config_dir

    register_configuration()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        plugin = DefaultCompletionPlugin(GlobalHydra.instance().config_loader())
        words = [*next(combinations(with_choices_of(folder, before))), word]
        offered = plugin._query(config_name="config", line=" ".join(words))
    return [each for each in offered if not each.startswith("tuned")]  # a group, but none to choose from


def _spelled(found: str) -> str:
    """A candidate with its ending: Hydra takes a list that is null for a section, and omits the slash of folders."""
    if found.removesuffix(".") in _defaults():
        return found.removesuffix(".") + "="
    return found if set("=./") & set(found) else f"{found}/"
