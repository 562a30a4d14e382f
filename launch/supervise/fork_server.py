"""The process of tfdist that has imported TensorFlow, from which tasks are forked.

This side starts it and asks it; `tfdist.cluster.fork_server` is the other side. A forked task is
a child of this process, as a spawned one is.
"""

import contextlib
import functools
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from launch.remote import host
from tf_config import contract
from tf_config.contract import ForkAnswer, ForkRequest

_IMPORT_TIMEOUT = 120.0  # seconds
# In seconds. A fork takes milliseconds, and one that is given up costs only an import.
_ANSWER_TIMEOUT = 10.0


class ForkServer:
    """A running fork server, which ends with this process.

    Call `processes.adopt_orphans` first.

    Attributes:
        pid: Its process id.
        is_ready: Whether it has imported TensorFlow.
        problem: Why it can fork nothing; '' if it can, or will.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(self, python: str, env: Mapping[str, str], log: IO[bytes]) -> None:
        self.is_ready = False
        self.problem = ""
        self._control, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [python, "-m", contract.FORK_SERVER_MODULE, str(number)],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[number],
                preexec_fn=functools.partial(host.die_with_parent, os.getpid()),
            )
        self.pid = self._process.pid

    def fileno(self) -> int:
        """Returns the file descriptor that is readable when it is ready, or has ended."""
        return self._control.fileno()

    def hear(self) -> None:
        """Reads its first answer: it is ready, or it has failed."""
        answer = self._read(_IMPORT_TIMEOUT)
        self.is_ready = bool(answer.pid)
        if not self.is_ready:
            self.close(answer.problem or "it has ended")

    def fork(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Mapping[int, int],
    ) -> ForkAnswer:
        """Forks a task in its own session; it dies with this process.

        `fds` has the task's files: the number there, then the one in this process. A fork
        server that does not answer is killed, and a task that it has forked never begins.
        """
        request = ForkRequest(tuple(argv), env, os.getcwd(), tuple(fds))
        # The task waits for one byte here. If its answer comes too late, none is
        # written: it reads the end of the file, and exits.
        permit, grant = os.pipe()
        try:
            answer = self._ask(request, [*fds.values(), permit])
            if answer.pid:
                os.write(grant, b"\n")
        finally:
            os.close(permit)
            os.close(grant)
        return answer

    def close(self, problem: str) -> None:
        """Ends the fork server; tasks that it has forked continue."""
        self.problem = self.problem or problem
        self._control.close()
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.returncode = 0  # `processes.reap` reaps it.

    def _ask(self, request: ForkRequest, files: Sequence[int]) -> ForkAnswer:
        line = request.to_line()
        try:
            # sendmsg(2) may take only the first part of a long line; the files go with
            # that part.
            sent = socket.send_fds(self._control, [line], files)
            self._control.sendall(line[sent:])
        except OSError as error:
            self.close(str(error))
            return ForkAnswer(problem=f"the fork server has ended: {error}")
        answer = self._read(_ANSWER_TIMEOUT)
        if not (answer.pid or answer.problem):
            self.close("the fork server has ended, or hung")
            return ForkAnswer(problem=self.problem)
        return answer

    def _read(self, timeout: float) -> ForkAnswer:
        """Reads one answer; without a process id and a problem if there is none."""
        self._control.settimeout(timeout)
        with contextlib.suppress(OSError), self._control.makefile("rb") as answers:
            line = answers.readline()
            if line.endswith(b"\n"):
                return ForkAnswer.from_line(line)
        return ForkAnswer()
