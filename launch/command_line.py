"""What the commands share: the launcher's flags, then the script, then its flags."""

import io
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import flags

from launch import stray_flags
from launch.engines.engine import EngineError
from launch.engines.hosts import HostError
from launch.engines.record import RecordError
from launch.fault.faults import FaultError
from launch.loopback import LogDirError
from launch.network.ports import PortError
from launch.paths import existing_part
from launch.plan import AUTO, PROGRAM_KINDS, PlanError, Program
from launch.supervise.processes import PlatformError
from tf_config import JOBS, ClusterError
from tf_config.contract import EXIT_USAGE


class UsageError(ValueError):
    """The command line is wrong; the message says how to correct it."""


def define_common(values: flags.FlagValues) -> None:
    """Defines the flags of every command that starts a script."""
    flags.DEFINE_enum(
        "program",
        AUTO,
        PROGRAM_KINDS,
        "Which tasks run the script: only the chief (coordinator), or all of them "
        "(every_task). auto means every_task for an Estimator program and for a "
        "cluster without ps, and coordinator otherwise.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "dry_run", False, "Print the plan and exit.", flag_values=values
    )
    define_help(values)


def define_task(values: flags.FlagValues) -> None:
    """Defines the flags for the addresses of a cluster and for this task."""
    flags.DEFINE_string(
        "job_name",
        None,
        f"Job of this task: one of {', '.join(JOBS)}.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "task_index", None, "Index of this task within its job.", flag_values=values
    )
    for job in JOBS:
        flags.DEFINE_string(
            f"{job}_hosts",
            "",
            f"Addresses of the {job} tasks: host:port,host:port,...",
            flag_values=values,
        )


def define_help(values: flags.FlagValues) -> None:
    """Defines --help."""
    flags.DEFINE_boolean("help", False, "Show this help and exit.", flag_values=values)


def parse(
    argv: Sequence[str], values: flags.FlagValues, usage: str
) -> tuple[flags.FlagValues, Program]:
    """Parses the launcher's flags up to the script; everything after it is the script's.

    Returns:
        The values of the launcher's flags, and the program. A flag of the script that
        seems to be meant for the launcher is warned of.

    Raises:
        UsageError: If a flag is unknown or has a bad value, or no script follows.
        SystemExit: After printing the help, if it was requested.
    """
    values, rest = parse_flags(argv, values, usage)
    if not rest:
        raise UsageError(
            "no script given: put it after the flags, for example train.py"
        )
    script, *script_flags = rest
    program = Program(script, tuple(script_flags))
    if stray := stray_flags.warning(program, set(values)):
        print(stray, file=sys.stderr, flush=True)
    return values, program


def parse_flags(
    argv: Sequence[str], values: flags.FlagValues, usage: str
) -> tuple[flags.FlagValues, list[str]]:
    """Parses the launcher's flags up to the first argument that is not a flag.

    Returns:
        The values of the flags, and the remaining arguments.

    Raises:
        UsageError: If a flag is unknown or has a bad value.
        SystemExit: After printing the help, if it was requested.
    """
    values.set_gnu_getopt(
        False
    )  # Stop at the script, whose flags may have the same names.
    try:
        _, *rest = values(list(argv))
    except (flags.Error, ValueError) as error:  # ValueError: --noflag=value.
        raise UsageError(_in_words(str(error), values)) from None
    if values.help:
        print(f"{usage}\n{_describe(values)}")
        raise SystemExit(0)
    return values, rest


def check_script(script: str) -> None:
    """Checks that the script can be run.

    Raises:
        UsageError: If it does not exist, or is not a readable file.
    """
    if not os.path.exists(script):
        raise UsageError(
            f"script {script!r} does not exist in {os.getcwd()}: check its path"
        )
    if not os.path.isfile(script):
        raise UsageError(
            f"script {script!r} is not a file: give the path of a Python script"
        )
    if not os.access(script, os.R_OK):
        raise UsageError(f"script {script!r} is not readable: check its permissions")


def check_checkpoint_dir(directory: str | None) -> None:
    """Checks that checkpoints can be written to a directory, if one is given.

    Raises:
        UsageError: If the directory cannot be written or created.
    """
    if directory is None:
        return
    if not directory.strip():
        raise UsageError(
            "--checkpoint_dir is empty: give a directory, or omit the flag"
        )
    existing = existing_part(directory)
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise UsageError(
            f"--checkpoint_dir={directory} is not writable: {existing} is not a "
            "directory, or you lack permission to write to it"
        )


def check_output(path: str | None, flag: str) -> None:
    """Checks that a file can be written, if one is given.

    Args:
        path: The path of the file.
        flag: The name of the flag that gives it.

    Raises:
        UsageError: If the file cannot be written.
    """
    if path is None:
        return
    directory = os.path.dirname(os.path.abspath(path))
    if not path.strip() or os.path.isdir(path):
        raise UsageError(f"--{flag}={path} is not a file: give the path of one")
    if not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise UsageError(
            f"--{flag}={path} cannot be written: {directory} is not a directory, or you "
            "lack permission to write to it"
        )


def run(main: Callable[[Sequence[str]], int], command: str) -> NoReturn:
    """Runs a command; turns a user error into one message and exit status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Arguments that are not UTF-8 arrive as surrogates: print them as they were given.
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        status = main(sys.argv)
        sys.stdout.flush()
        sys.exit(status)
    except (
        UsageError,
        PlanError,
        PortError,
        LogDirError,
        ClusterError,
        FaultError,
        PlatformError,
        HostError,
        EngineError,
        RecordError,
    ) as error:
        print(f"{command}: error: {error}\n(see --help for the flags)", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        # Once a job has started, its signals are the job's: see `launch.foreground`.
        print(f"{command}: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader of the pipe, such as head, is gone. The interpreter flushes standard
        # output once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _in_words(error: str, values: flags.FlagValues) -> str:
    """Rewrites absl's error about a flag's value to say what is allowed."""
    match = re.fullmatch(r"flag --(\w+)=(.*?): .*", error, re.DOTALL)
    if match is None or match[1] not in values:
        return error
    flag = values[match[1]]
    if isinstance(flag, flags.BooleanFlag):
        allowed = "true or false"
    elif isinstance(flag, flags.EnumFlag):
        allowed = f"one of {', '.join(flag.parser.enum_values)}"
    else:
        allowed = flag.parser.syntactic_help
        if not allowed.startswith(("a ", "an ")):
            allowed = f"a {allowed}"
    return f"--{match[1]} is {allowed}; received {match[2]!r}"


def _describe(values: flags.FlagValues) -> str:
    lines = ["flags:"]
    for name in values:
        flag = values[name]
        default = "" if flag.default in (None, "") else f" Default: {flag.default}."
        # absl says of a flag that may be repeated that it may.
        words = flag.help.partition(";\n")[0]
        text = textwrap.fill(words + default, 80, initial_indent=" " * 6)
        lines += [f"  --{name}", textwrap.indent(text.strip(), " " * 6)]
    return "\n".join(lines)
