"""`pipetrain completion SHELL`: the script that makes the Tab key complete commands, flags, settings and choices."""

import argparse

from pipetrain.commands import Subparsers
from pipetrain.errors import ConfigError, ExitCode

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
"""Shell -> what it must know to ask `pipetrain completion --line` for candidates.

A candidate that ends in a blank is complete, one that ends in `=` or `.` goes on. Without candidates the shell offers
file names.
"""
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
        from pipetrain.commands.completion.candidates import candidates

        print(*candidates(options.line, options.commands), sep="\n")
    elif options.shell is None:
        raise ConfigError(f"pipetrain completion: SHELL is missing; choose from {', '.join(SCRIPTS)}")
    else:
        print(SCRIPTS[options.shell], end="")
    return ExitCode.COMPLETED
