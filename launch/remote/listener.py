"""The program of a pod, which waits for its job's launcher, and runs its requests.

    LAUNCHER_KEY_FILE=... LAUNCHER_TASK_JOB=ps LAUNCHER_TASK_INDEX=0 \
        python -m launch.remote.listener

The output of a task goes to its launcher, and to this pod's own log. It ends when the
launcher says that the job is over, or when there was none for a long time.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import Any

from launch.remote import channel, greeting

JOB, INDEX, PATIENCE = (
    "LAUNCHER_TASK_JOB",
    "LAUNCHER_TASK_INDEX",
    "LAUNCHER_PATIENCE",
)
"""The environment variables for the role, the index, and the seconds that a pod waits
without a launcher."""

_TURN = 0.2  # seconds
_PAIR_TIMEOUT = 10.0
_CHUNK = 64 * 1024
_BACKLOG = 64


class Session:
    """One process that the launcher runs here, and the connections to it.

    Attributes:
        launcher: The pod that asked for it.
        is_tunnel: Whether it is known to be a tunnel, and no task.
    """

    def __init__(
        self, line: str, launcher: str, link: socket.socket, events: socket.socket
    ) -> None:
        self.launcher = launcher
        self._link, self._events = link, events
        self._is_ending = False
        self.is_tunnel = False
        # The launcher's probe prints what only the launcher wants to know.
        self._echoes = channel.AGENT in line
        self._process = subprocess.Popen(
            ["sh", "-c", line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._lock = threading.Lock()

    def run(self) -> None:
        """Carries what is written to and fro until the process has ended."""
        reader = threading.Thread(target=self._carry_input, daemon=True)
        events = threading.Thread(target=self._carry_events, daemon=True)
        reader.start()
        events.start()
        self._carry_output()
        events.join()
        self._process.wait()
        for link in (self._link, self._events):
            # The input may still be read, which closing alone would not end.
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        reader.join()
        for link in (self._link, self._events):
            link.close()

    def end(self) -> None:
        """Ends the task as one that is lost: its pod is taken away."""
        self._is_ending = True
        self._write(channel.order(signal.SIGTERM))

    def cut(self) -> None:
        """Ends the process as if its launcher had gone."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def _carry_input(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._link.recv(_CHUNK):
                self._write(data)
        # The agent ends its task with its input.
        with contextlib.suppress(OSError), self._lock:
            if self._process.stdin:
                self._process.stdin.close()

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError), self._lock:
            assert self._process.stdin
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _carry_output(self) -> None:
        assert self._process.stdout
        output = self._process.stdout.fileno()
        while data := os.read(output, _CHUNK):
            if self._echoes:
                with contextlib.suppress(OSError):
                    os.write(1, data)
            _send(self._link, data)

    def _carry_events(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            event = channel.event(line.decode(errors="replace"))
            if event and event["event"] == "certificate":
                self.is_tunnel, self._echoes = True, False
            # Whatever status a task has that was told to end, its machine was lost.
            if not (self._is_ending and event and event["event"] == "exit"):
                _send(self._events, line)


class Listener:
    """The program in this pod."""

    def __init__(self, task: str, key: bytes, patience: float) -> None:
        self._task, self._key, self._patience = task, key, patience
        self._events: dict[str, socket.socket] = {}
        self._arrived = threading.Condition()
        self._sessions: set[Session] = set()
        self._heard = time.monotonic()
        self._is_over = False
        self._signum = 0

    def serve(self) -> int:
        """Serves until the job is over, and returns the exit status."""
        signal.signal(signal.SIGTERM, self._note)
        with socket.create_server(
            ("", greeting.PORT), backlog=_BACKLOG, reuse_port=False
        ) as server:
            server.settimeout(_TURN)
            while not (self._is_over or self._signum):
                with contextlib.suppress(TimeoutError):
                    link, _ = server.accept()
                    threading.Thread(
                        target=self._answer, args=[link], daemon=True
                    ).start()
                if self._sessions:
                    self._heard = time.monotonic()
                elif time.monotonic() - self._heard > self._patience:
                    print(f"no launcher for {self._patience:g} s: ending", flush=True)
                    return 0
        for session in self._tasks:
            session.end()
        while self._tasks:
            time.sleep(_TURN)
        # A task may still need it to save.
        for session in list(self._sessions):
            session.cut()
        while self._sessions:
            time.sleep(_TURN)
        return 128 + self._signum if self._signum else 0

    @property
    def _tasks(self) -> list[Session]:
        return [each for each in list(self._sessions) if not each.is_tunnel]

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._signum = signum

    def _answer(self, link: socket.socket) -> None:
        try:
            wish = greeting.answer(link, self._key, self._task)
        except OSError as error:
            link.close()
            if isinstance(error, greeting.StrangerError):
                print(f"launch: {error}", flush=True)
            return
        match wish:
            case {"for": greeting.OVER}:
                self._is_over = True
                link.close()
            case {"for": greeting.EVENTS, "id": str(name)}:
                with self._arrived:
                    self._events[name] = link
                    self._arrived.notify_all()
            case {
                "for": greeting.PROCESS,
                "id": str(name),
                "line": str(line),
                "launcher": str(launcher),
            }:
                self._run(name, line, launcher, link)
            case _:
                link.close()

    def _run(self, name: str, line: str, launcher: str, link: socket.socket) -> None:
        # A launcher may have been lost without a word, and this is the next one.
        while before := [each for each in self._sessions if each.launcher != launcher]:
            for each in before:
                each.cut()
            time.sleep(_TURN)
        with self._arrived:
            self._arrived.wait_for(lambda: name in self._events, _PAIR_TIMEOUT)
            events = self._events.pop(name, None)
        if events is None:
            link.close()
            return
        session = Session(line, launcher, link, events)
        self._sessions.add(session)
        try:
            session.run()
        finally:
            self._sessions.discard(session)


def _send(link: socket.socket, data: Any) -> None:
    # A launcher that has gone does not read; the task must not wait for it.
    with contextlib.suppress(OSError):
        link.sendall(data)


def main() -> int:
    """Serves the task that the environment names, and returns the exit status."""
    task = f"{os.environ[JOB]}:{os.environ[INDEX]}"
    patience = float(os.environ[PATIENCE])
    return Listener(task, greeting.read_key(), patience).serve()


if __name__ == "__main__":
    sys.exit(main())
