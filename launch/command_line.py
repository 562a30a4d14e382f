"""What the commands share: our flags, then the user's script, then its flags."""

import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import flags

from launch.fault.faults import FaultError
from launch.loopback import LogDirError
from launch.network.ports import PortError
from launch.paths import existing_part
from launch.plan import AUTO, KINDS, PlanError, Program
from launch.supervise.processes import PlatformError
from tf_config import JOBS, ClusterError
from tf_config.contract import EXIT_USAGE


class UsageError(ValueError):
    """A command line that the user has to mend."""


def define_common(values: flags.FlagValues) -> None:
    """Defines the flags that every command has."""
    flags.DEFINE_enum(
        "program",
        AUTO,
        KINDS,
        "Whether the chief alone runs the script (coordinator), or each task does; "
        "auto lets each task of an Estimator's program, and else chooses by the "
        "cluster.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "dry_run", False, "Print the plan, and start nothing.", flag_values=values
    )
    define_help(values)


def define_task(values: flags.FlagValues) -> None:
    """Defines the flags that say who is in a cluster, and which task this is."""
    flags.DEFINE_string(
        "job_name", None, f"Job of this task: {', '.join(JOBS)}.", flag_values=values
    )
    flags.DEFINE_integer(
        "task_index", None, "Index of this task in its job.", flag_values=values
    )
    for job in JOBS:
        flags.DEFINE_string(
            f"{job}_hosts",
            "",
            f"Addresses of the {job} tasks, host:port,host:port.",
            flag_values=values,
        )


def define_help(values: flags.FlagValues) -> None:
    """Defines the flag that prints all flags."""
    flags.DEFINE_boolean("help", False, "Show this help.", flag_values=values)


def parse(
    argv: Sequence[str], values: flags.FlagValues, usage: str
) -> tuple[flags.FlagValues, Program]:
    """Parses our flags up to the script; all that follows is the script's.

    Returns:
        The values of our flags, and the program.

    Raises:
        UsageError: If a flag is unknown or has a bad value, or no script follows.
        SystemExit: If help was asked for, once it is printed.
    """
    values, rest = parse_flags(argv, values, usage)
    if not rest:
        raise UsageError("no script: name it after the flags, for example train.py")
    script, *script_flags = rest
    return values, Program(script, tuple(script_flags))


def parse_flags(
    argv: Sequence[str], values: flags.FlagValues, usage: str
) -> tuple[flags.FlagValues, list[str]]:
    """Parses our flags up to the first argument that is none.

    Returns:
        The values of our flags, and the rest.

    Raises:
        UsageError: If a flag is unknown or has a bad value.
        SystemExit: If help was asked for, once it is printed.
    """
    values.set_gnu_getopt(False)  # Stop at the script: its flags are its own.
    try:
        _, *rest = values(list(argv))
    except (flags.Error, ValueError) as error:  # The latter for --noflag=value.
        raise UsageError(_in_words(str(error), values)) from None
    if values.help:
        print(f"{usage}\n{_describe(values)}")
        raise SystemExit(0)
    return values, rest


def check_script(script: str) -> None:
    """Checks that Python can be given the script.

    Raises:
        UsageError: If it does not exist, or is not a readable file.
    """
    if not os.path.exists(script):
        raise UsageError(
            f"script {script!r} does not exist in {os.getcwd()}: check its path"
        )
    if not os.path.isfile(script):
        raise UsageError(f"script {script!r} is not a file: name a Python script")
    if not os.access(script, os.R_OK):
        raise UsageError(f"script {script!r} may not be read: check its permissions")


def check_checkpoint_dir(directory: str | None) -> None:
    """Checks that checkpoints can be written to the directory that is named, if any.

    Raises:
        UsageError: If it cannot be written, or made.
    """
    if directory is None:
        return
    if not directory.strip():
        raise UsageError(
            "--checkpoint_dir is empty: name a directory, or leave the flag out"
        )
    existing = existing_part(directory)
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise UsageError(
            f"--checkpoint_dir={directory} cannot be written: {existing} is no "
            "directory, or not yours to write to"
        )


def run(main: Callable[[Sequence[str]], int], command: str) -> NoReturn:
    """Runs a command; a mistake of the user's is one message and status 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As arguments are decoded: what is not text is printed as it was given.
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
    ) as error:
        print(f"{command}: error: {error}\n(--help lists the flags)", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except BrokenPipeError:
        # Whoever read the plan has seen enough. The interpreter flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _in_words(error: str, values: flags.FlagValues) -> str:
    """What absl says of a value that cannot be read, with what is allowed."""
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
        text = textwrap.fill(flag.help + default, 80, initial_indent=" " * 6)
        lines += [f"  --{name}", textwrap.indent(text.strip(), " " * 6)]
    return "\n".join(lines)
