"""Completion of the console command in bash and zsh: its commands, and their flags.

A shell reads it by `source <(tfdist completion)`.
"""

from tf_config.commands import COMMANDS, CONSOLE

# The flags are those that `--help` lists: a second list of them could be wrong. A launcher
# answers in a third of a second. Zsh has `complete` once bashcompinit has run, which needs
# compinit; most users' .zshrc has run that before.
_SCRIPT = r"""# Completes CONSOLE in bash and zsh.
if [ -n "${ZSH_VERSION-}" ]; then
    autoload -U +X compinit bashcompinit
    (( $+functions[compdef] )) || compinit
    bashcompinit
fi
_CONSOLE() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} commands="COMMANDS"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "$commands completion --help --version" -- "$word"))
    elif [[ $word == -* && " $commands " == *" $command "* ]]; then
        COMPREPLY=($(compgen -W "$(CONSOLE "$command" --help 2>/dev/null |
            sed -En 's/^  (-., )?--(\[no\])?([a-z0-9_]+)(=.*)?$/--\3/p')" -- "$word"))
    fi
}
complete -o default -F _CONSOLE CONSOLE
"""


def script() -> str:
    """Returns a script for the user's shell to read."""
    # A server has no flags, and starts at once.
    commands = " ".join(name for name in COMMANDS if name != "server")
    return _SCRIPT.replace("CONSOLE", CONSOLE).replace("COMMANDS", commands)
