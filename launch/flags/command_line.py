"""Command lines of launchers: their flags, then the script, then its flags."""

import io
import json
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from absl import flags

from launch.flags import config_file
from launch.flags.errors import ScriptError, UsageError
from launch.flags.paths import check_output
from launch.flags.values import Flags
from launch.job.plan import AUTO, PROGRAM_KINDS, Program
from launch.job.script_source import num_ps_of, op_libraries, path_of, stray_flags
from launch.remote import keras_backend
from launch.supervise.processes import PlatformError
from tf_config import JOBS, flag_help
from tf_config.commands import COMMANDS, CONSOLE, as_typed, nearest
from tf_config.contract import EXIT_USAGE
from tf_config.errors import Mistake

_GROUPS = {
    "common": "hosts hostfile address image namespace partition time nodes num_ps num_workers "
    "workers gpus_per_worker program module job_name task_index chief_hosts ps_hosts "
    "worker_hosts evaluator_hosts gpus seed steps faults kinds consistency output "
    "log_dir name detach config save_config dry_run tf_config pid job json help",
    "recovery": "checkpoint_dir max_restarts restart_window min_workers startup_timeout "
    "stall_timeout grace_period straggler_timeout connect_timeout",
}
"""The flags that most users want, and those for what may go wrong; the others are rare."""

_OF_OTHERS = dict.fromkeys(
    ("n", "np", "nproc_per_node", "num_processes"), "num_workers"
)
"""The flags of other launchers, by their names there."""

_OF_CLUSTER = {
    *("num_ps", "num_workers", "program", "chief", "module", "name", "log_dir")
}
_OF_CLUSTER |= {f"{job}_hosts" for job in JOBS}


def define_common(values: Flags) -> None:
    """Defines the flags of every command that starts a script."""
    values.choice(
        "program",
        AUTO,
        PROGRAM_KINDS,
        "Which tasks run the script: only the chief (coordinator), or all of them "
        "(every_task). auto means every_task for an Estimator program and for a "
        "cluster without ps, and coordinator otherwise.",
    )
    values.switch(
        "module",
        False,
        "The script is the name of a module, as for python -m.",
        short_name="m",
    )
    values.texts(
        "import",
        None,
        "Modules that a ps or a worker imports before it serves, since they register "
        "operations that the script uses. By default, the installed libraries of "
        "TensorFlow operations that the script imports.",
    )
    config_file.define(values)
    values.switch("dry_run", False, "Print the plan and exit.")
    define_help(values)


def define_task(values: Flags) -> None:
    """Defines the flags for the addresses of a cluster and for this task."""
    values.text("job_name", None, f"Job of this task: one of {', '.join(JOBS)}.")
    values.integer("task_index", None, "Index of this task within its job.")
    for job in JOBS:
        values.text(
            f"{job}_hosts", "", f"Addresses of the {job} tasks: host:port,host:port,..."
        )


def define_help(values: Flags) -> None:
    """Defines --help."""
    values.switch("help", False, "Show this help and exit.")


def parse(argv: Sequence[str], values: Flags, usage: str) -> tuple[Flags, Program]:
    """Parses the launcher's flags up to the script; everything after it is the script's.

    Returns:
        The values of the launcher's flags, and the program. A flag of the script that
        seems to be meant for the launcher is warned of.
    """
    values, rest = parse_flags(argv, values, usage)
    if values.config is not None:
        try:
            rest = config_file.configured(values, rest, usage)
        except flags.Error as error:
            words = _in_words(str(error), values)
            raise UsageError(f"{values.config}: {words}") from None
    if not rest:
        raise ScriptError(
            "no script given: put it after the flags, for example train.py. --help shows "
            "the flags"
        )
    program = Program(rest[0], tuple(rest[1:]), values.module)
    _check_syntax(program)
    asked = values["import"].value
    imports = op_libraries(program) if asked is None else filter(None, asked)
    command = json.dumps([_typed(argv[0], values), shlex.join(program.argv)])
    program = replace(program, imports=tuple(imports), command=command)
    if stray := stray_flags(program, set(values)):
        # A wish to start nothing.
        if "--dry_run" in stray.replace("-run", "_run"):
            raise UsageError(stray.removeprefix("WARNING: "))
        print(stray, file=sys.stderr, flush=True)
    if "num_workers" in values and values.num_ps is None:
        values["num_ps"].value, chosen = num_ps_of(program, values.program)
        if chosen:
            print(chosen, file=sys.stderr, flush=True)
    if values.save_config is not None:
        check_output(values.save_config, "save_config")
        print(config_file.save(values, rest), file=sys.stderr, flush=True)
    return values, program


def _typed(program: str, values: Flags) -> str:
    """Returns how the command was typed, without the flags that describe the cluster."""
    # "tfdist ssh", or the path of launch/ssh.py.
    name = Path(program).stem.split()[-1]
    is_known = name in COMMANDS or program == f"{CONSOLE} {name}"
    words = [CONSOLE, name if is_known else "local"]
    for flag in {values[each].name: values[each] for each in values}.values():
        if flag.present and flag.name not in _OF_CLUSTER:
            words += flag.serialize().split("\n")
    # A log shows the command, and must not show a secret.
    return shlex.join(re.sub(r"(?s)^(--env=\w+=).*", r"\1...", each) for each in words)


def parse_flags(
    argv: Sequence[str], values: Flags, usage: str
) -> tuple[Flags, list[str]]:
    """Parses the launcher's flags up to the first argument that is not a flag.

    Returns:
        The values of the flags, and the remaining arguments.

    Raises:
        UsageError: If a flag is unknown or has a bad value.
        SystemExit: After printing the help, if it was requested.
    """
    # Stop at the script, whose flags may have the same names.
    values.set_gnu_getopt(False)
    try:
        command, *arguments = argv
        _, *rest = values(
            [command, *flag_help.normalized(arguments, values, has_script=True)]
        )
    except (flags.Error, ValueError) as error:  # ValueError: --noflag=value.
        raise UsageError(_in_words(str(error), values)) from None
    if values.help:
        help_text = f"{usage}\n{flag_help.describe(values, _GROUPS)}"
        print(flag_help.filled(as_typed(help_text, argv[0])))
        raise SystemExit(0)
    return values, rest


def check_script(program: Program) -> None:
    """Checks that the script can be run."""
    script = program.script
    if program.is_module:
        if path_of(program) is None:
            raise ScriptError(
                f"Python finds no module {script!r} from {os.getcwd()}: check its name, "
                "such as package.train; a file needs no -m"
            )
        return
    if not os.path.exists(script):
        raise ScriptError(
            f"script {script!r} does not exist in {os.getcwd()}: check its path"
        )
    if not os.path.isfile(script):
        raise ScriptError(
            f"script {script!r} is not a file: give the path of a Python script"
        )
    if not os.access(script, os.R_OK):
        raise ScriptError(f"script {script!r} is not readable: check its permissions")


def check_backend() -> None:
    """Checks that Keras will use TensorFlow in the tasks of this machine."""
    if why := keras_backend.problem(os.environ):
        raise ScriptError(why)


def _check_syntax(program: Program) -> None:
    """Checks the script's syntax, if it is on this machine."""
    path = path_of(program)
    try:
        source = path.read_bytes() if path else b""
    except (OSError, ValueError):
        return
    if b"\0" in source:  # An archive or compiled, which Python runs, too.
        return
    try:
        with warnings.catch_warnings():
            # Python gives them when it runs the script.
            warnings.simplefilter("ignore")
            compile(source, program.script, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        text = (error.text or "").strip()
        raise ScriptError(
            f"script {program.script!r} has a syntax error{where}: {error.msg}"
            f"{text and f': {text}'}"
        ) from None


def run(main: Callable[[Sequence[str]], int], command: str) -> NoReturn:
    """Runs a command; turns a user error into one message and exit status 2.

    These errors are raised wherever something is found wrong, and all of them end here. So
    the functions of this package do not list them.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Arguments that are not UTF-8 arrive as surrogates: print them as they were given.
        sys.stdout.reconfigure(errors="surrogateescape")
    command = as_typed(command, sys.argv[0])
    try:
        status = main(sys.argv)
        sys.stdout.flush()
        sys.exit(status)
    except (Mistake, PlatformError) as error:
        about_flags = isinstance(error, UsageError) and not isinstance(
            error, ScriptError
        )
        hint = "\n(see --help for the flags)" if about_flags else ""
        text = as_typed(str(error), sys.argv[0])
        print(f"{command}: error: {text}{hint}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        # Once a job has started, its signals are the job's: see `launch.loopback.foreground`.
        print(f"{command}: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader of the pipe, such as head, is gone. The interpreter flushes standard
        # output once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _in_words(error: str, values: Flags) -> str:
    """Rewrites absl's error about a flag's value to say what is allowed."""
    if unknown := re.match(r"Unknown command line flag '(.*?)'", error):
        name = unknown[1]
        typed = f"-{name}" if len(name) == 1 else f"--{name}"
        return f"there is no flag {typed}.{nearest(_OF_OTHERS.get(name, name), values)}"
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
    return f"--{match[1]} must be {allowed}; received {match[2]!r}"
