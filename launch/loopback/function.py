"""Runs a Python function on a cluster of this machine: see `run`."""

import contextlib
import importlib.util
import inspect
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

from launch.job.job import Job
from launch.job.plan import AUTO, COORDINATOR, Program
from launch.loopback import function_call
from launch.loopback.cluster import (
    LaunchError,
    local_cluster,
    make_job,
    make_log_dir,
)
from launch.supervise.handle import Handle
from tf_config import contract

_Result = TypeVar("_Result")
_OPTIONS = {*inspect.signature(make_job).parameters, *(f.name for f in fields(Job))}
_OPTIONS -= {"cluster", "program", "kind", "plans", "environ", "limits"}


class TaskTraceback(Exception):  # noqa: N818 - the cause of an error, and none itself
    """The traceback of an error in a task, as text: the cause of what `run` raises."""


def run(
    function: Callable[..., _Result],
    *args: Any,
    num_ps: int = 2,
    num_workers: int = 2,
    program: str = AUTO,
    **options: Any,
) -> _Result:
    """Calls a function on a new cluster of this machine, and returns its result.

        def train(epochs):
            strategy = tfdist.ParameterServerStrategy()
            ...
            return model.get_weights()

        weights = launch.run(train, 5, num_ps=2, num_workers=2)

    It runs in a new process each time, as a script under `launch.local` does: in the
    chief's, or in each worker's if there are no ps. cloudpickle copies it and what it uses
    there: it must return what it changes, and make strategies and datasets itself. What
    the tasks print is shown here; an interrupt is the function's, and ends the cluster.

    Args:
        function: The function to call.
        *args: Its arguments; `functools.partial` gives it keyword arguments.
        num_ps: Number of parameter servers.
        num_workers: Number of workers, at least 1.
        program: The tasks that call it, as in the flag of `launch.local`:
            `coordinator`, the chief; `every_task`, all; `auto`, the chief if there are
            ps, or else all.
        **options: `log_dir`, `checkpoint_dir`, `gpus_per_worker`, and attributes of
            `Job`, such as `max_restarts`, which is 0 unless given.

    Returns:
        The function's result in the chief, or without a chief in the first worker.

    Raises:
        Exception: The function's own error; its `__cause__` has the traceback there.
        LaunchError: If the cluster did not start, or a task ended otherwise, as when it is
            killed.
        TypeError: If the function is none, an option is unknown, or what has to travel
            between processes cannot be pickled.
        ValueError: If the numbers are not a valid cluster, or the logs cannot be written.
        RuntimeError: If this process is a task of a cluster itself.
        ImportError: If cloudpickle is not installed.
        KeyboardInterrupt: If this process is interrupted, once the cluster has ended.
    """
    _check(function, num_ps, num_workers, options)
    result: _Result = _result(function, args, num_ps, num_workers, program, options)
    return result


def _result(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    num_ps: int,
    num_workers: int,
    program: str,
    options: dict[str, Any],
) -> Any:
    """Runs the job of a script that calls a function, and returns its result."""
    has_chief = num_ps > 0 or program == COORDINATOR
    cluster = local_cluster(num_ps, num_workers, chief=has_chief)
    answers = "chief" if has_chief else "worker:0"
    with tempfile.TemporaryDirectory(prefix="launch-run-") as directory:
        script = function_call.write(directory, function, args, answers)
        job = make_job(cluster, Program(script), program, **options)
        make_log_dir(job.log_dir)
        status, reason = _run(job)
        outcomes = function_call.read(directory)
    returned = [each for each in outcomes if each.task == answers and not each.stack]
    if returned and status == 0:  # Others may have failed, and been given up.
        return pickle.loads(returned[0].pickled)
    if failed := next((each for each in outcomes if each.stack), None):
        raise _error(failed) from TaskTraceback(f"in {failed.task}:\n\n{failed.stack}")
    reason = reason or "it ended without returning, as by sys.exit"
    raise LaunchError(f"no result: {reason}. The logs are in {job.log_dir}")


def _error(failed: function_call.CallOutcome) -> Exception:
    """Returns the error that a task has met, or one that stands for it."""
    error = pickle.loads(failed.pickled)
    if isinstance(error, Exception):
        return error
    last = failed.stack.rstrip().rpartition("\n")[2]
    return LaunchError(f"{failed.task} has failed: {last}")


def _run(job: Job) -> tuple[int, str]:
    """Runs a job, shows its output, and returns its exit status and why it failed."""
    # A notebook shows what is written to its own `sys.stdout`, and so does pytest. A
    # terminal shows progress bars that move, if the supervisor itself writes to it.
    is_terminal = sys.stdout.isatty() and sys.stdout is sys.__stdout__
    source, sink = (None, None) if is_terminal else os.pipe()
    was_interrupted, reason = False, ""
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(Handle(job, output=sink))
        output: Iterable[str] = ()
        if source is not None and sink is not None:
            # Otherwise the output would not end with the job.
            os.close(sink)
            output = stack.enter_context(open(source, errors="replace"))
        while True:
            try:
                for line in output:
                    sys.stdout.write(line)
                    sys.stdout.flush()
                while event := handle.next_event():
                    reason = event.get("error", reason)
                status = handle.wait()
                break
            except KeyboardInterrupt:
                # The function may save its work; a second interrupt kills it.
                was_interrupted = True
                handle.signal(signal.SIGINT)
    if was_interrupted:
        raise KeyboardInterrupt
    return status, reason


def _check(
    function: Callable[..., Any],
    num_ps: int,
    num_workers: int,
    options: dict[str, Any],
) -> None:
    if not callable(function):
        raise TypeError(
            f"launch.run calls a function; received {function!r}: give the function "
            "itself, as in launch.run(train, 5), and not what it returns"
        )
    if unknown := sorted(options.keys() - _OPTIONS):
        raise TypeError(
            f"launch.run has no {' or '.join(unknown)}; its options are "
            f"{', '.join(sorted(_OPTIONS))}. Arguments of the function come after it, "
            "and functools.partial gives it keyword arguments"
        )
    for name, value, least in (("num_ps", num_ps, 0), ("num_workers", num_workers, 1)):
        if not isinstance(value, int) or value < least:
            raise ValueError(
                f"{name} must be an integer of at least {least}; received {value!r}"
            )
    if task := os.environ.get(contract.TF_CONFIG, "").strip():
        raise RuntimeError(
            f"this process is a task of a cluster: TF_CONFIG is {task}. Call launch.run "
            "outside of it: not within the function that it calls, nor in a script that "
            "a launcher starts; after launch.servers, del os.environ['TF_CONFIG']"
        )
    if importlib.util.find_spec("cloudpickle") is None:
        raise ImportError(
            "launch.run needs cloudpickle to send the function to other processes: "
            "pip install 'cloudpickle>=3' (the extra `notebook`)"
        )
