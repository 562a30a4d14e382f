"""Answers the launcher's requests, and forks."""

import os
import resource
import socket
import sys
import warnings
from collections.abc import Sequence

from tf_config.contract import ForkAnswer, ForkRequest
from tfdist.cluster.fork_server import process
from tfdist.cluster.fork_server.first_import import FirstImport
from tfdist.cluster.fork_server.imports import Imports
from tfdist.cluster.fork_server.program import ForkedProgram

_CHUNK = 64 * 1024
_MOST_FILES = 16


def serve() -> ForkedProgram:
    """Serves until the launcher closes its socket, and then exits.

    In each forked process, it returns what that runs.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    try:
        # Whatever the kernel refuses here, it would refuse to every task.
        process.show(sys.orig_argv, [f"{k}={v}" for k, v in os.environ.items()])
        imports = Imports()
    except Exception as error:
        control.sendall(
            ForkAnswer(problem=f"{type(error).__name__}: {error}").to_line()
        )
        raise
    control.sendall(ForkAnswer(os.getpid()).to_line())
    while received := receive(control):
        request, files = received
        pid, problem = 0, _lost(request, files)
        problem = problem or _why_not(request, imports, {control.fileno(), *files})
        if not problem:
            pid = _fork()
            if pid == 0:
                control.close()
                return _start(request, files, parent, imports)
        for each in files:
            os.close(each)
        control.sendall(ForkAnswer(pid, problem=problem).to_line())
    os._exit(0)  # Nothing that the imports have registered is to run here.


def receive(control: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """Waits for a request; returns it with its files, or None at the end."""
    data, files, _, _ = socket.recv_fds(control, _CHUNK, _MOST_FILES)
    while data and not data.endswith(b"\n"):
        more = control.recv(_CHUNK)
        if not more:
            print(
                f"tfdist.cluster.fork_server: the launcher ended within a request, of which "
                f"{len(data)} bytes had come",
                file=sys.stderr,
            )
            return None
        data += more
    return (ForkRequest.from_line(data), files) if data else None


def _lost(request: ForkRequest, files: Sequence[int]) -> str:
    """Returns the problem with the number of files that came with a request, or ''.

    The kernel leaves out, without an error, what would exceed this process's limit. The
    files that are left would take each other's places.
    """
    sent = len(request.fds) + 1
    if len(files) == sent:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"the fork server received {len(files)} file descriptors of {sent}; it may have "
        f"at most {limit} open, and a request at most {_MOST_FILES}. Raise the limit "
        "(ulimit -n) before the launcher starts"
    )


def _why_not(request: ForkRequest, imports: Imports, closing: set[int]) -> str:
    """Returns why a task cannot be forked, or ''.

    `closing` are files of the fork server that the task will not have.
    """
    if os.getcwd() != request.cwd:
        return f"its directory is {request.cwd}"
    try:
        program = ForkedProgram(request.argv)
    except ValueError as error:
        return str(error)
    if name := imports.hidden_by(program.directory):
        return f"it would import {name} from {program.directory}"
    new = {each for each in request.fds if each > 2} - closing
    taken = sorted(filter(_is_open, new))
    return f"file descriptors {taken} are taken" if taken else ""


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _fork() -> int:
    """Forks a process that this one is not the parent of; returns its id, and 0 in it.

    As its parent ends at once, the nearest subreaper adopts it: the launcher.
    """
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads: none of those that the imports start has a lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        between = os.fork()
        pid = os.fork() if between == 0 else 0
    if between == 0 and pid:
        os.write(theirs, str(pid).encode())
        os._exit(0)
    os.close(theirs)
    if between:
        pid = int(os.read(ours, _CHUNK))
        os.waitpid(between, 0)
    os.close(ours)
    return pid


def _start(
    request: ForkRequest, files: list[int], parent: int, imports: Imports
) -> ForkedProgram:
    *files, permit = files
    if not os.read(permit, 1):
        os._exit(0)  # The launcher did not wait for the answer.
    os.close(permit)
    try:
        process.become(request, files, parent)
    except OSError as error:
        print(f"tfdist.cluster.fork_server: {error}", file=sys.stderr)
        os._exit(1)
    program = ForkedProgram(request.argv)
    program.prepare(imports.path[0 if program.directory is None else 1 :])
    sys.meta_path.insert(0, FirstImport(imports))
    return program
