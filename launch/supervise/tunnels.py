"""The stunnel of each host: started before any task connects, and again if it dies."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from launch.console.console import Console
from launch.console.lines import LineSplitter, tail
from launch.job.job import Job
from launch.job.tunnel import Tunnel
from launch.remote import channel
from launch.supervise import policy
from launch.supervise.event_loop import EventLoop
from launch.supervise.policy import Verdict
from launch.supervise.processes import Exit
from launch.supervise.remote_process import Heartbeat, RemoteProcess

if TYPE_CHECKING:
    from launch.secure.authority import Authority

_TAIL_LINES = 5
_TURN, _RECONNECT_INTERVAL = 0.1, 30.0  # seconds


class _Running:
    """One stunnel, and the agent around it."""

    def __init__(
        self, job: Job, tunnel: Tunnel, authority: "Authority", log_path: str
    ) -> None:
        self.tunnel = tunnel
        self._log_path = log_path
        self._authority = authority
        self._lines = LineSplitter()
        self.events, theirs = os.pipe()
        os.set_blocking(self.events, False)
        request = {
            **{"argv": tunnel.argv, "env": dict(tunnel.env), "cwd": "/"},
            **{"address": f"tunnel {tunnel.port}", "port": tunnel.port, "closed": []},
            **{"report": None, "stall_timeout": job.stall_timeout},
            **{"config": tunnel.config, "python": tunnel.python},
        }
        try:
            with open(log_path, "ab") as log:
                self.process = RemoteProcess(
                    tunnel.remote,
                    tunnel.python,
                    request,
                    output=log.fileno(),
                    events=theirs,
                )
        except OSError:
            os.close(self.events)
            raise
        finally:
            os.close(theirs)

    @property
    def listens(self) -> bool:
        return self.process.listens(self.tunnel.port)

    def hear(self) -> bool:
        """Handles what the agent has told; returns False once it says no more."""
        is_open = True
        for data, lines in self._lines.read(self.events):
            for line in lines:
                match channel.event(line):
                    case {"event": "certificate", "request": str(request)}:
                        self._certify(request)
                    case _:
                        if isinstance(rest := self.process.hear(line), str):
                            self._note(rest)
            is_open = bool(data)
        return is_open

    def close(self) -> None:
        self.process.close()
        os.close(self.events)

    def _certify(self, request: str) -> None:
        try:
            signed = self._authority.sign(request, self.tunnel.names)
        except ValueError as error:
            self._note(f"launch: no certificate: {error}")
            return
        files = {"certificate": signed, "authority": self._authority.certificate}
        self.process.send(channel.certificate(files))

    def _note(self, line: str) -> None:
        with contextlib.suppress(OSError), open(self._log_path, "a") as log:
            log.write(f"{line}\n")


class Tunnels:
    """The tunnels of one job, from the first task's start to the last one's end.

    Attributes:
        failure: Why the job must end; None if it can continue.
    """

    def __init__(
        self, job: Job, loop: EventLoop, console: Console, heartbeat: Heartbeat
    ) -> None:
        self._job = job
        self._loop = loop
        self._console = console
        self._heartbeat = heartbeat
        self._tunnels = {each.remote.host: each for each in job.tunnels}
        self._running: dict[str, _Running] = {}
        self._due: dict[str, float] = {}
        self._deaths: dict[str, list[float]] = {host: [] for host in self._tunnels}
        self._are_ending = False
        self._authority: Authority | None = None
        self.failure: Verdict | None = None

    @property
    def pids(self) -> list[int]:
        """The processes of the connections."""
        return [each.process.pid for each in self._running.values()]

    @property
    def interval(self) -> float:
        """The interval between calls of `check`, in seconds."""
        return _TURN if self._due else float("inf")

    @property
    def missing(self) -> list[Tunnel]:
        """The tunnels that do not listen yet."""
        return [
            tunnel
            for host, tunnel in self._tunnels.items()
            if host not in self._running or not self._running[host].listens
        ]

    def start(self) -> None:
        """Starts all; `missing` says which do not listen yet."""
        if not self._job.tunnels:
            return
        # It takes a tenth of a second to import, which a job on one machine can do without.
        from launch.secure.authority import Authority

        self._authority = Authority()
        for tunnel in self._job.tunnels:
            # Each start appends to the log, and an earlier job's words would be shown
            # as this one's.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._log_path(tunnel))
            self._start(tunnel)

    def explain_silence(self) -> str:
        """Explains which tunnels did not listen in time."""
        return "\n".join(
            f"{tunnel.name} did not listen on port {tunnel.port} within "
            f"{self._job.startup_timeout:g} s (--startup_timeout); "
            f"{tail(self._log_path(tunnel), _TAIL_LINES)}"
            for tunnel in self.missing
        )

    def check(self) -> None:
        """Starts dead tunnels again, once their time has come."""
        now = time.monotonic()
        for host in [each for each, due in self._due.items() if due <= now]:
            del self._due[host]
            self._start(self._tunnels[host])

    def record(self, exits: Collection[Exit]) -> None:
        """Notes which connections have ended."""
        for exit in exits:
            for running in [*self._running.values()]:
                if running.process.pid == exit.pid:
                    self._ended(running, exit)

    def end(self, timeout: float) -> None:
        """Ends all, and waits until nothing of them is left on the hosts."""
        self._are_ending = True
        self._due.clear()
        for running in self._running.values():
            running.process.signal(signal.SIGKILL)
        self._loop.wait(lambda: not self._running, timeout)

    def close(self) -> None:
        """Closes the files of tunnels that did not end in time."""
        for running in [*self._running.values()]:
            self._close(running)

    def _start(self, tunnel: Tunnel) -> None:
        assert self._authority
        try:
            running = _Running(
                self._job, tunnel, self._authority, self._log_path(tunnel)
            )
        except OSError as error:
            self.failure = Verdict(1, f"cannot start {tunnel.name}: {error}")
            return
        self._running[tunnel.remote.host] = running
        self._heartbeat.add(running.process)
        self._loop.register(running.events, lambda: self._hear(running))

    def _hear(self, running: _Running) -> None:
        if not running.hear():
            self._loop.unregister(running.events)

    def _ended(self, running: _Running, exit: Exit) -> None:
        if self._loop.has(running.events):
            self._hear(running)  # Its last words come before the news of its end.
        self._close(running)
        if self._are_ending:
            return
        code = running.process.exit(exit).code
        how = policy.describe_exit(code)
        tunnel = running.tunnel
        deaths = self._deaths[tunnel.remote.host]
        delay = policy.restart_delay(
            deaths, time.monotonic(), self._job.max_restarts, self._job.restart_window
        )
        job = self._job
        there = job.tasks_on([tunnel.remote.host])
        is_spare = policy.can_spare(job.plans, there, (), job.needed_workers)
        is_lost = code == policy.LOST
        if delay is None and (is_lost or is_spare):
            # The tasks decide whether their host is lost.
            delay = min(2.0 ** len(deaths), _RECONNECT_INTERVAL)
        # If it never listened, its host is wrong, and would be again.
        was_well = running.listens or deaths or (is_lost and is_spare)
        if delay is None or not was_well:
            end = tail(self._log_path(tunnel), _TAIL_LINES)
            self.failure = Verdict(
                1, f"{tunnel.name} {how}, and the tasks cannot do without; {end}"
            )
            return
        deaths.append(time.monotonic())
        self._due[tunnel.remote.host] = time.monotonic() + delay
        if delay == _RECONNECT_INTERVAL and is_spare:
            return  # The launcher has said that it continues without.
        wait = f" in {delay:g} s" if delay else ""
        self._console.notice(f"{tunnel.name} {how}: starting it again{wait}")

    def _close(self, running: _Running) -> None:
        del self._running[running.tunnel.remote.host]
        if self._loop.has(running.events):
            self._loop.unregister(running.events)
        running.close()

    def _log_path(self, tunnel: Tunnel) -> str:
        host = re.sub(r"[^A-Za-z0-9_.@-]", "_", tunnel.remote.host)
        return os.path.join(self._job.log_dir, f"stunnel-{host}.log")
