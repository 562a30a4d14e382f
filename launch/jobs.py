"""Looks at the jobs that were started from this machine, from any shell, by name.

    python -m launch.jobs list
    python -m launch.jobs status NAME
    python -m launch.jobs follow NAME
    python -m launch.jobs logs NAME [TASK]
    python -m launch.jobs cancel NAME

`follow` ends with the job, and has its exit status; Ctrl-C ends only the following.
`logs` prints what every task has written, or one task, such as ps:0. `cancel` returns
when nothing of the job is left; a job that has ended can be cancelled again.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launch.engines import engine, record
from launch.engines.engine import ENDED, Engine, EngineError, Status
from launch.engines.record import Record
from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.supervise import progress
from tf_config.commands import nearest


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns its exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values = Flags()
    command_line.define_help(values)
    values, words = command_line.parse_flags(argv, values, __doc__ or "")
    match words:
        case ["list"]:
            return _list()
        case [verb, name, *tasks] if verb in _VERBS and (verb == "logs" or not tasks):
            job = record.load(name)
            return _VERBS[verb](job, engine.load(job.engine), tasks)
    near = nearest(words[0], ["list", *_VERBS]) if words else ""
    raise UsageError(
        f"write list, or one of {', '.join(_VERBS)} and the name of a job; received "
        f"{' '.join(words) or 'nothing'}{near and f'.{near}'}"
    )


def _list() -> int:
    known = record.everything()
    if not known:
        # Standard output has a job in each line.
        print("no jobs", file=sys.stderr)
    for each in known:
        try:
            # Ask the engine only for a status that is not known yet.
            status = (
                str(Status(ENDED, each.end["code"]))
                if "code" in each.end
                else str(engine.load(each.engine).status(each))
            )
        except EngineError as error:
            # The rest says what to do; status says it too.
            status = f"unknown: {str(error).partition(':')[0]}"
        print(f"{each.name}  {each.engine}  {each.started}  {status}")
    return 0


def _status(job: Record, chosen: Engine[Any], _: Sequence[str]) -> int:
    status = chosen.status(job)
    print(f"{job.name} on {job.engine} since {job.started}: {status}")
    for name, (host, address, log) in job.tasks.items():
        # A task that has not started, or never will, has none.
        log = log if os.path.exists(log) else "no log yet"
        print(f"  {name}  on {status.hosts.get(name, host)}  {address}  {log}")
    logs = {log for *_, log in job.tasks.values()} if job.is_alive else set()
    if lines := {*map(progress.read, logs)} - {""}:
        print(f"  training: {lines.pop()}")
    return 0


def _follow(job: Record, chosen: Engine[Any], _: Sequence[str]) -> int:
    try:
        for line in chosen.follow(job):
            print(line, flush=True)
    except KeyboardInterrupt:
        print(f"launch.jobs: job {job.name} goes on", file=sys.stderr)
        return 0
    code = chosen.status(job).code
    return 1 if code is None else code


def _logs(job: Record, chosen: Engine[Any], tasks: Sequence[str]) -> int:
    names = tasks or list(job.tasks)
    width = max(map(len, names)) + 2
    for name in names:
        # One task's log is printed as it is, for other programs.
        prefix = "" if len(names) == 1 else f"[{name}]".ljust(width) + " "
        for line in chosen.logs(job, name):
            print(f"{prefix}{line}")
    return 0


def _cancel(job: Record, chosen: Engine[Any], _: Sequence[str]) -> int:
    chosen.cancel(job)
    print(f"{job.name}: {chosen.status(job)}")
    return 0


_VERBS: Mapping[str, Callable[[Record, Engine[Any], Sequence[str]], int]] = {
    "status": _status,
    "follow": _follow,
    "logs": _logs,
    "cancel": _cancel,
}

if __name__ == "__main__":
    command_line.run(main, "launch.jobs")
