"""Starts a task as a process: forked, spawned, or on another host."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launch.job import forking
from launch.job.job import Job
from launch.job.plan import TaskPlan
from launch.remote import host
from launch.supervise import processes
from launch.supervise.event_loop import EventLoop
from launch.supervise.fork_server import ForkServer
from launch.supervise.processes import Exit
from launch.supervise.remote_process import Heartbeat, RemoteProcess
from tf_config import contract
from tf_config.contract import Report

_LOG_NAME = "fork-server.log"


@dataclass(frozen=True)
class LocalProcess:
    """A task that is a child of the supervisor."""

    pid: int

    def signal(self, signum: int) -> None:
        """Sends a signal to the task."""
        os.kill(self.pid, signum)

    def let_go(self) -> None:
        """Does nothing: a process that SIGKILL has not ended cannot be ended."""

    def listens(self, port: int) -> bool:
        """Returns True if the task accepts connections on the port."""
        return host.listens(self.pid, port)

    def hear(self, line: str) -> Report | str | None:
        """Takes a line of the reports."""
        return Report.from_line(line)

    def exit(self, exit: Exit) -> Exit:
        """Returns how the task ended."""
        return exit

    def close(self) -> None:
        """Does nothing: it has no files."""


Started = LocalProcess | RemoteProcess
"""The result of a `Starter`: a child of the supervisor stands for the task."""


class Starter:
    """Starts the processes of a job's tasks."""

    def __init__(self, job: Job, loop: EventLoop, heartbeat: Heartbeat) -> None:
        self._job = job
        self._loop = loop
        self._environment: dict[str, str] = {}
        self._server: ForkServer | None = None
        self._has_begun = False
        self._heartbeat = heartbeat

    @property
    def pids(self) -> list[int]:
        """The processes that it needs itself."""
        return [self._server.pid] if self._server and not self._server.problem else []

    @property
    def is_ready(self) -> bool:
        """True if tasks can be started without waiting for the fork server."""
        return not self._server or self._server.is_ready or bool(self._server.problem)

    def begin(self) -> None:
        """Starts the fork server if this job is to have one; call it once or more."""
        if self._has_begun:
            return
        self._has_begun = True
        plans = [plan for plan in self._job.plans if plan.remote is None]
        if not plans or self._job.fork_server == forking.OFF:
            return  # Nobody has to read the script.
        self._environment = forking.environment(plans, os.environ)
        forkable = [plan for plan in plans if not self._why_not(plan, os.environ)]
        if not forking.is_wanted(self._job.fork_server, forkable):
            return
        try:
            with open(self._log_path, "wb") as log:
                self._server = server = ForkServer(
                    sys.executable, self._environment, log
                )
        except OSError as error:
            self._note(f"no fork server: {error}")
            return
        self._loop.register(server, lambda: self._hear(server))

    def start(
        self, plan: TaskPlan, *, output: int, reports: int, inherit_stdin: bool = False
    ) -> Started:
        """Starts a task in its own session; it dies with this process.

        It gets `reports`, the file of its reports, unless the job has no restarts. On another
        host, it reads no standard input.
        """
        hears = bool(self._job.max_restarts)
        if plan.remote:
            request = {
                "argv": plan.argv,
                "env": plan.env,
                "cwd": plan.remote.cwd,
                "address": plan.address,
                # A task that runs the script may open its port or not, at any time.
                "port": plan.port if plan.is_server else None,
                "closed": self._job.closed_ports,
                "report": contract.REPORT_FD if hears else None,
                "stall_timeout": self._job.stall_timeout,
            }
            remote = RemoteProcess(
                plan.remote, plan.argv[0], request, output=output, events=reports
            )
            self._heartbeat.add(remote)
            return remote
        env = {**os.environ, **plan.env}
        if hears:
            env[contract.REPORT_FD] = str(reports)
        pass_fds = [reports] if hears else []
        pid = self._fork(plan, env, output, inherit_stdin, pass_fds)
        return LocalProcess(
            pid
            or processes.spawn(
                plan.argv,
                env,
                output=output,
                stdin=None if inherit_stdin else subprocess.DEVNULL,
                pass_fds=pass_fds,
            )
        )

    def _fork(
        self,
        plan: TaskPlan,
        env: Mapping[str, str],
        output: int,
        inherit_stdin: bool,
        pass_fds: Sequence[int],
    ) -> int:
        """Returns the process id of a task that was forked; 0 if it has to be spawned."""
        if not self._server:
            return 0
        if not self.is_ready:
            # The supervisor has waited for it as long as a start may take.
            self._loop.unregister(self._server)
            self._server.close("the fork server was not ready in time")
        problem = self._server.problem or self._why_not(plan, env)
        if not problem:
            with open(os.devnull) as nothing:
                stdin = 0 if inherit_stdin else nothing.fileno()
                others = {each: each for each in pass_fds}
                files = {0: stdin, 1: output, 2: output, **others}
                answer = self._server.fork(plan.argv, env, files)
            if answer.pid:
                self._note(f"{plan.name} is process {answer.pid}, forked")
                return answer.pid
            problem = answer.problem
        self._note(f"{plan.name} is spawned, not forked: {problem}")
        return 0

    def _why_not(self, plan: TaskPlan, environ: Mapping[str, str]) -> str:
        return forking.why_not(plan, {**environ, **plan.env}, self._environment)

    def _hear(self, server: ForkServer) -> None:
        # From here on, it only answers requests, and those wait for their answers.
        self._loop.unregister(server)
        server.hear()

    @property
    def _log_path(self) -> str:
        return os.path.join(self._job.log_dir, _LOG_NAME)

    def _note(self, text: str) -> None:
        """Writes to the fork server's log: most users need not know."""
        with contextlib.suppress(OSError), open(self._log_path, "a") as log:
            log.write(f"launch: {text}\n")
