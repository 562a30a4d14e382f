"""A function that a cluster calls: how it gets to the tasks, and its outcome back.

Everything is a file in a directory of this machine, where a local cluster runs.
"""

import contextlib
import io
import linecache
import os
import pickle
import signal
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from launch.job.plan import task_name
from tf_config import TFConfig
from tf_config.whole_file import write_whole

_CALL = "call.pickle"
_OUTCOME = ".outcome"
# A script in a directory of its own, since a task may be forked only if the source of its
# program shows nothing that comes too late, and a module of this package is next to many.
_SCRIPT = """\
import os
import sys

from launch.loopback import function_call

sys.exit(function_call.make(os.path.dirname(__file__)))
"""


@dataclass(frozen=True)
class CallOutcome:
    """The end of the call in one task.

    Attributes:
        task: The task's short name.
        pickled: The result or the exception of the function, as a pickle; None for an
            exception that cannot be pickled.
        stack: The traceback of the exception; '' if the function returned.
    """

    task: str
    pickled: bytes
    stack: str = ""


def write(
    directory: str, function: Callable[..., Any], args: Sequence[Any], answers: str
) -> str:
    """Writes a call, and returns the path of the script that makes it in a task.

    Args:
        directory: The directory of all files.
        function: The function to call.
        args: Its arguments.
        answers: The short name of the task that returns the function's result.

    Raises:
        TypeError: If the function or its arguments cannot be pickled.
    """
    settings = {
        "answers": answers,
        "path": sys.path,
        # The cells of a notebook are in no file. Tracebacks show these lines, and
        # AutoGraph reads them.
        "sources": {
            name: entry
            for name, entry in linecache.cache.items()
            if len(entry) > 1 and not os.path.exists(name)
        },
    }
    call = _pickled((function, tuple(args)), "the function and its arguments")
    Path(directory, _CALL).write_bytes(pickle.dumps((settings, call)))
    script = Path(directory, "call_function.py")
    script.write_text(_SCRIPT)
    return str(script)


def make(directory: str) -> int:
    """Makes the call in this task, writes its outcome, and returns the exit status."""
    name = task_name(TFConfig.from_environment().task)
    settings, call = pickle.loads(Path(directory, _CALL).read_bytes())
    sys.path[:] = settings["path"]
    linecache.cache.update(settings["sources"])
    try:
        # It imports the modules that the function uses, so the path came first.
        function, args = pickle.loads(call)
        result = function(*args)
        if name == settings["answers"]:
            what = f"what the function returned, a {type(result).__name__},"
            _save(directory, CallOutcome(name, _pickled(result, what)))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # The process that made the call knows already.
    except Exception as error:
        stack = _stack(error)
        if name != settings["answers"]:
            print(stack, file=sys.stderr)  # Only the first error is raised there.
        _save(directory, CallOutcome(name, _pickled_error(error), stack))
        return 1
    return 0


def read(directory: str) -> list[CallOutcome]:
    """Returns the outcomes so far, the first one first."""
    paths = [*Path(directory).glob(f"*{_OUTCOME}")]
    paths.sort(key=lambda path: path.stat().st_mtime_ns)
    return [pickle.loads(path.read_bytes()) for path in paths]


def _save(directory: str, outcome: CallOutcome) -> None:
    write_whole(Path(directory, outcome.task + _OUTCOME), pickle.dumps(outcome))


def _dumps(value: Any) -> bytes:
    from cloudpickle import Pickler

    # It drops the name of the source, which tracebacks and AutoGraph need.
    def reduce_code(code: CodeType) -> tuple[Any, ...]:
        make, arguments, *_ = Pickler.dispatch_table[CodeType](code)
        return _code, (code.co_filename, make, arguments)

    class NamingPickler(Pickler):
        dispatch_table = ChainMap({CodeType: reduce_code}, Pickler.dispatch_table)

    file = io.BytesIO()
    NamingPickler(file).dump(value)
    return file.getvalue()


def _code(filename: str, make: Callable[..., CodeType], arguments: Any) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


def _pickled(value: Any, what: str) -> bytes:
    try:
        return _dumps(value)
    except Exception as error:  # An object's own methods may raise anything.
        raise TypeError(
            f"{what} cannot be pickled, and so cannot travel between processes: {error}. "
            "Arrays, numbers, text and functions can; datasets, strategies, open files "
            "and locks cannot: make them within the function"
        ) from error


def _pickled_error(error: Exception) -> bytes:
    with contextlib.suppress(Exception):
        pickled = _dumps(error)
        pickle.loads(pickled)  # Some can be pickled, and not be read back.
        return pickled
    return pickle.dumps(None)


def _stack(error: Exception) -> str:
    # The frames of this file say nothing about the user's.
    first = error.__traceback__
    while first and first.tb_frame.f_code.co_filename == __file__:
        first = first.tb_next
    return "".join(traceback.format_exception(type(error), error, first))
