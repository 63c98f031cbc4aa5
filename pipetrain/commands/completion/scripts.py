"""What each shell must know to ask `pipetrain completion --line` for candidates.

A candidate that ends in a blank is whole, one that ends in `=` or `.` goes on. Files are completed where there is none.
"""

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
