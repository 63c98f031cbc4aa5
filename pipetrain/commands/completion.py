"""`pipetrain completion SHELL`: the script that makes the Tab key complete commands, flags, settings and choices."""

import argparse
import contextlib
import io
from collections.abc import Iterable, Mapping, Sequence
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
    command, *before = before
    actions = commands[command]._actions
    nested = [action.choices for action in actions if isinstance(action, argparse._SubParsersAction)]
    if nested and (before or not word.startswith("-")):
        return _choices(before, word, nested[0])
    flags = {name: action for action in actions for name in action.option_strings}
    if before and (action := flags.get(before[-1])) and action.nargs != 0:
        return map(str, action.choices or ())
    if word.startswith("-"):
        shown = (name for name, action in flags.items() if action.help != argparse.SUPPRESS)
        return (name for name in shown if name.startswith("--"))
    positional = [action for action in actions if not action.option_strings]
    if not commands[command].get_default("takes_settings"):
        return (str(choice) for action in positional for choice in action.choices or ())
    words = [each for each in before if not each.startswith("-")]
    first = sum(action.nargs is None for action in positional)  # such as the RUN of `eval`
    if len(words) < first:
        return ()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_config_dir(parser)
    folder: Path | None = parser.parse_known_args(before)[0].config_dir
    return _settings([each for each in words[first:] if "=" in each], word, folder and folder.expanduser())


def _settings(before: Sequence[str], word: str, folder: Path | None) -> list[str]:
    """Settings and choices that begin with `word`, after the settings `before`; `folder` has the user's own choices."""
    from pipetrain.runner.config.checks import CHOICES, TRACKERS
    from pipetrain.runner.config.choices import all_names
    from pipetrain.runner.config.reference import groups, sections

    known = {setting.name: setting.default for section in sections() for setting in section.settings}
    name, equals, value = word.partition("=")
    values = CHOICES.get(name) or (("true", "false") if isinstance(known.get(name), bool) else ())
    if equals and values:
        return [f"{name}={each}" for each in values]
    # of a list, and of a sweep such as method=gpipe,pip, the last member is completed
    *members, last = value.removeprefix("[").split(",")
    if equals and name == "log.to":
        return [f"{name}=[{','.join([*members, each])}]" for each in TRACKERS if each not in members]
    if equals and name in groups():
        # of the choices in a folder of the group, only the folder
        names = all_names(name) | (all_names(name, folder) if folder is not None else set())
        rests = (each.removeprefix(last).partition("/") for each in names if each.startswith(last))
        found = [f"{name}={last}{head}{slash}" for head, slash, _ in rests]
    else:
        offered = _of_hydra(before, f"{name}{equals}{last}", folder)
        found = [each for each in offered if each.count("=") < 2]  # Hydra offers the places in a list, such as 0=
    if members:
        return [f"{name}={','.join([*members, each.partition('=')[2]])}" for each in found]
    return [_spelled(each, known) for each in found if not each.startswith("tuned")]  # not a group to choose from


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
        return plugin._query(config_name="config", line=" ".join(words))


def _spelled(found: str, known: Mapping[str, object]) -> str:
    """A candidate with its ending: Hydra takes a list that is null for a section, and omits the slash of folders."""
    if found.removesuffix(".") in known:
        return found.removesuffix(".") + "="
    return found if set("=./") & set(found) else f"{found}/"
