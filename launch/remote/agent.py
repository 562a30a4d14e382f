"""Runs one task on a host for a launcher on another machine, and ends it with the link.

It is sent to the host as source, with the modules that it imports, so the host needs
Python and nothing else. Standard input brings a line of JSON with the task, then a line
per order, such as a signal to pass on, and an empty one now and then as a sign of life.
Standard output is the task's. Standard error takes what the launcher must know, as lines
of JSON. When the input ends, or no sign of life comes, the task is killed with all that
it has started.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from launch.network.loopback_only import LoopbackOnly
from launch.remote import host, identity, memory

CANNOT_START = 126
"""The exit status of a task that could not be started."""

_TURN_TIMEOUT = 45.0  # seconds, more than a lease
_KILL_TIMEOUT = 10.0
_SOON, _NOW_AND_THEN = 0.05, 1.0
_CHUNK = 64 * 1024


class Agent:
    """One task, from its start to its end.

    Args:
        request: The task: `argv`, `env` (in addition to the host's own), `cwd`,
            `address`, `port` (None if it may not open it), `closed` (the ports that
            nothing here may open to other hosts), `report` (the variable that names its
            file of reports, or None), `lease` (seconds without a sign of life after
            which it is killed) and `stall_timeout` (seconds that it may be stopped).
            A tunnel also has `config`, its configuration, and the `python` that makes
            its key.
        rest: The bytes after the request.
    """

    def __init__(self, request: dict[str, Any], rest: bytes) -> None:
        self._request = request
        self._orders = rest
        self._heard = time.monotonic()
        self._linked = True
        self._pid = 0
        self._code: int | None = None
        self._cpu = 0.0
        self._memory = memory.MemoryWatch()
        self._was_killed = False
        self._why = ""
        self._is_server = bool(request["port"])
        self._listens = not self._is_server
        # The present stop of the task, and when it was first seen.
        self._stop: tuple[int, float] | None = None
        self._reports, self._report_end = os.pipe()
        self._report = b""
        self._confined: LoopbackOnly | None = None
        self._files = identity.Files()
        self._certificate: dict[str, str] | None = None
        os.set_blocking(self._reports, False)

    def run(self) -> int:
        """Runs the task to its end, and returns the agent's exit status."""
        host.prctl(host.PR_SET_CHILD_SUBREAPER, 1)
        woken, waker = socket.socketpair()
        for each in (woken, waker):
            each.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        # Python writes to the wake-up file only for signals that have a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # One that was ignored from the start is an engine's, for all processes.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._unlink)
        # Orders may have come together with the request.
        self._take(b"")
        if problem := self._await_turn() or self._identify() or self._start():
            # Nobody needs to hear why a task that was told to end did not start.
            self._code = 128 + signal.SIGTERM
            if self._linked:
                where = os.uname().nodename
                os.write(1, f"launch: cannot start on {where}: {problem}\n".encode())
                self._code = CANNOT_START
        while self._linked and self._code is None:
            self._wait(woken, _NOW_AND_THEN if self._listens else _SOON)
            self._reap()
            self._look()
            self._memory.check()
        self._kill_rest()
        # Nobody is left who could write, so the pipe ends.
        self._pass_reports()
        _tell(event="exit", code=self._code, cpu=self._cpu, why=self._why)
        return 0

    def _unlink(self, *_: object) -> None:
        self._linked = False

    def _await_turn(self) -> str:
        """Waits for the end of the task's last process; returns what is in the way.

        A connection may break unnoticed at this end, and then the task lives on for a
        while. TensorFlow shares a port with whoever listens on it.
        """
        port = self._request["port"]
        # The kernel forgets such a name with the process that has it.
        name = f"\0tfdist {self._request['address']}"
        self._turn = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + _TURN_TIMEOUT
        while self._linked and not host.can_bind(self._turn, name):
            if time.monotonic() > deadline:
                return "its last process does not end"
            self._wait(None, _SOON)
        while self._linked and port and not host.is_free(port):
            if time.monotonic() > deadline:
                return f"port {port} is taken by another process"
            self._wait(None, _SOON)
        return "" if self._linked else "it has been told to end"

    def _identify(self) -> str:
        """Makes a key, and gets its certificate; returns what is in the way."""
        if not (config := self._request.get("config")):
            return ""
        env = {**os.environ, **self._request["env"]}
        try:
            key, pem = identity.make(self._request["python"], env)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return f"no key can be made: {error}"
        _tell(event="certificate", request=pem)
        deadline = time.monotonic() + identity.TIMEOUT
        while self._linked and not self._certificate:
            if time.monotonic() > deadline:
                return "no certificate came"
            self._wait(None, _SOON)
        for name, text in {**(self._certificate or {}), "key": key}.items():
            self._files.add(name, text)
        self._files.add("config", self._files.filled(config))
        return "" if self._linked else "it has been told to end"

    def _start(self) -> str:
        request, agent = self._request, os.getpid()
        fds, env = self._files.numbers, {**os.environ, **request["env"]}
        if name := request["report"]:
            fds, env[name] = [*fds, self._report_end], str(self._report_end)

        def die_with_agent() -> None:
            host.die_with_parent(agent)
            if not self._is_server:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            elif self._files.numbers:
                # A tunnel handles it, and an engine may send it to every process.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

        try:
            if ports := request["closed"]:
                self._confined = LoopbackOnly(ports)  # From here on, it may not bind.
            task = subprocess.Popen(
                [self._files.filled(each) for each in request["argv"]],
                env=env,
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=1,
                stderr=1,
                start_new_session=True,
                pass_fds=fds,
                preexec_fn=die_with_agent,
            )
        except (OSError, ValueError) as error:
            return str(error)
        finally:
            os.close(self._report_end)
            self._files.close()
        task.returncode = 0  # `_reap` reaps it.
        self._pid = task.pid
        _tell(event="started", pid=task.pid)
        return ""

    def _wait(self, woken: "socket.socket | None", timeout: float) -> None:
        files = [0]
        if self._pid and self._reports >= 0:
            files.append(self._reports)
        if woken:
            files.append(woken.fileno())
        if self._confined:
            files.append(self._confined.fileno())
        ready, _, _ = select.select(files, [], [], timeout)
        if woken and woken.fileno() in ready:
            woken.recv(_CHUNK)
        if self._confined and self._confined.fileno() in ready:
            self._confined.answer()
        if 0 in ready:
            data = os.read(0, _CHUNK)
            self._linked = self._linked and bool(data)
            self._heard = time.monotonic()
            self._take(data)
        if self._reports in ready:
            self._pass_reports()
        if time.monotonic() - self._heard > self._request["lease"]:
            self._linked = False

    def _take(self, data: bytes) -> None:
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in filter(None, lines):
            match json.loads(line):
                case {"signal": int(signum)}:
                    self._signal(signum)
                case {"certificate": dict(found)}:
                    self._certificate = found

    def _signal(self, signum: int) -> None:
        if not self._pid:
            self._linked = False  # It has not even begun.
        elif self._code is None:
            # A server that ignores SIGTERM as this process does has nothing to save.
            is_deaf = signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            if signum == signal.SIGTERM and is_deaf and self._is_server:
                signum = signal.SIGKILL
            self._was_killed |= signum == signal.SIGKILL
            os.kill(self._pid, signum)

    def _pass_reports(self) -> None:
        while self._reports >= 0:
            try:
                data = os.read(self._reports, _CHUNK)
            except BlockingIOError:
                return
            *lines, self._report = (self._report + data).split(b"\n")
            for line in lines:
                _tell(event="report", line=line.decode(errors="replace"))
            if not data:
                os.close(self._reports)
                self._reports = -1

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._pid:
                    self._code = os.waitstatus_to_exitcode(status)
                    self._cpu = usage.ru_utime + usage.ru_stime
                    if self._code == -signal.SIGKILL and not self._was_killed:
                        self._why = self._memory.explain(usage.ru_maxrss * 1024)

    def _look(self) -> None:
        if self._code is not None:
            return
        if not self._listens and host.listens(self._pid, self._request["port"]):
            self._listens = True
            _tell(event="listening")
        stop = host.stop_of(self._pid)
        if stop is None:
            self._stop = None
            return
        now = time.monotonic()
        if self._stop is None or self._stop[0] != stop:
            self._stop = stop, now
        patience = self._request["stall_timeout"]
        if now - self._stop[1] > patience:
            text = f"launch: stopped (SIGSTOP) for {patience:g} s (--stall_timeout): killing it\n"
            os.write(1, text.encode())
            self._signal(signal.SIGKILL)

    def _kill_rest(self) -> None:
        """Kills every descendant; orphans among them become this process's children."""
        deadline = time.monotonic() + _KILL_TIMEOUT
        while (children := host.children()) and time.monotonic() < deadline:
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
            self._reap()


def _tell(**event: Any) -> None:
    # The launcher may be gone, which ends the task in any case.
    with contextlib.suppress(OSError):
        os.write(2, json.dumps(event).encode() + b"\n")


def main() -> None:
    """Reads the request, runs the task, and exits."""
    data = b""
    while b"\n" not in data:
        chunk = os.read(0, _CHUNK)
        if not chunk:
            sys.exit(0)  # Nobody is there.
        data += chunk
    line, _, rest = data.partition(b"\n")
    status = Agent(json.loads(line), rest).run()
    os._exit(status)


if __name__ == "__main__":
    main()
