"""The console command `tfdist`: every command of `launch` and `tfdist`, by one word.

    tfdist local --num_ps=2 --num_workers=2 train.py --epochs=5

does what `python -m launch.local` does with the same flags.
"""

import importlib.metadata
import os
import runpy
import sys

from launch import completion
from tf_config.commands import COMMANDS, CONSOLE, grouped, nearest
from tf_config.contract import EXIT_USAGE, IMPORTS, TF_CONFIG

_USAGE = f"""\
{CONSOLE} COMMAND [FLAGS] [SCRIPT [ITS FLAGS]]

{grouped()}

{CONSOLE} COMMAND --help shows the flags of a command, {CONSOLE} --version the version, and
{CONSOLE} completion what bash and zsh need to complete all of this."""
_HELP, _VERSION = ("-h", "--help", "help"), ("-V", "--version", "version")
_OF_SERVER = f"""\
{CONSOLE} server {COMMANDS["server"][1]}. It has no flags: {TF_CONFIG} describes
the cluster and the task, and {IMPORTS} lists modules to import before."""


def main() -> int:
    """Runs the command that the first argument names; returns only if there is none."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in _HELP and arguments:
        name, arguments = arguments[0], ["--help"]
    if name == "server" and arguments:
        # TensorFlow, which it imports, takes seconds.
        print(_OF_SERVER)
        return 0 if arguments[0] in _HELP else EXIT_USAGE
    if name in COMMANDS:
        # The name tells a command how it was started: `tf_config.commands.as_typed`.
        sys.argv[:] = [f"{CONSOLE} {name}", *arguments]
        _find_modules_here()
        # Not an import: this package imports nothing of tfdist.
        runpy.run_module(COMMANDS[name][0], run_name="__main__")
    elif name in _VERSION:
        print(CONSOLE, importlib.metadata.version("tfdist"))
    elif name == "completion":
        print(completion.script())
    elif name in _HELP:
        print(_USAGE)
    else:
        _run_of_another_package(name, arguments)
        return EXIT_USAGE
    return 0


def _run_of_another_package(name: str, arguments: list[str]) -> None:
    """Runs the command of an engine of another package; returns only if there is none."""
    # Imported late, since most commands need neither.
    from launch.engines import engine
    from launch.flags import command_line

    if name in (others := engine.of_other_packages()):
        sys.argv[:] = [f"{CONSOLE} {name}", *arguments]
        _find_modules_here()
        command_line.run(lambda argv: engine.command_of(name)(argv), sys.argv[0])
    print(
        f"{CONSOLE}: error: there is no command {name!r}."
        f"{nearest(name, [*COMMANDS, *others])}\n\n{grouped()}",
        file=sys.stderr,
    )


def _find_modules_here() -> None:
    """Lets modules of the current directory be found, as `python -m` does.

    Python puts the directory of the console command first, where the user has no modules.
    """
    if not getattr(sys.flags, "safe_path", False):  # Since Python 3.11.
        sys.path[0] = os.getcwd()
