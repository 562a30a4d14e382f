"""The process that is the parent of every task of a job on this machine.

It is started by `launch.supervise.handle`, in a session of its own, and is told its job over
a socket. It starts the servers and waits until they listen, starts the rest,
watches, and ends them all: when the job is over, when it is told to, and when the
process that started it dies. It leaves only when it has no descendant left.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import FrameType

from launch.console.console import Console
from launch.job import Job
from launch.network import reach
from launch.plan import TaskPlan
from launch.supervise import policy, processes, readiness
from launch.supervise.cluster_watch import ClusterWatch
from launch.supervise.output import Output
from launch.supervise.policy import Verdict
from launch.supervise.recovery import names
from launch.supervise.restarts import Restarts
from launch.supervise.stopped import StoppedTasks
from launch.supervise.summary import Phases, row, summarize
from launch.supervise.supervised_task import SupervisedTask
from tf_config import Task

_READINESS_INTERVAL = 0.1
_RECOVERY_INTERVAL = 0.2
_KILL_TIMEOUT = 10.0
_DRAIN_TIMEOUT = 1.0


class _KillNow(BaseException):
    """Somebody is out of patience: end everything without grace."""


class Supervisor:
    """Runs one job; see `run`.

    Args:
        job: What to start.
        control: The socket to the process that asked for the job. When it closes,
            the job ends.
        console: Where logs and notices go.
    """

    def __init__(self, job: Job, control: socket.socket, console: Console) -> None:
        self._job = job
        self._control = control
        self._console = console
        self._leader = policy.leader(job.plans)
        self._tasks: dict[Task, SupervisedTask] = {}
        self._exits: dict[Task, int] = {}
        self._signals: list[int] = []
        self._abandoned = False
        self._impatient = False
        self._restarts = Restarts(
            job,
            console,
            self._tasks,
            self._exits,
            self._wait,
            self._start_all,
            lambda: bool(self._signals or self._abandoned),
        )
        self._stopped = StoppedTasks(job.stall_timeout, console)
        self._cluster = ClusterWatch(job.plans, console)
        self._output = Output(job, console)
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Runs the job to its end, and returns its exit status."""
        processes.adopt_orphans()
        self._selector.register(self._control, selectors.EVENT_READ, self._hear)
        marks = [time.monotonic()]
        verdict = None
        try:
            self._listen_for_signals()
            verdict = self._start()
            marks.append(time.monotonic())
            verdict = verdict or self._watch()
            marks.append(time.monotonic())
            self._report(verdict)
            self._end_gently()
            self._impatient = True  # What follows kills anyway.
        except _KillNow:
            verdict = verdict or self._interrupted()
        self._kill_rest()
        marks += [time.monotonic()] * (4 - len(marks))
        phases = Phases(*(after - before for before, after in pairwise(marks)))
        use = self._cluster.use
        rows = [
            row(
                plan,
                self._job.log_path(plan),
                self._tasks.get(plan.task),
                use.note(plan.task, verdict.status),
            )
            for plan in self._job.plans
        ]
        self._console.notice(summarize(rows, phases))
        if conclusion := use.conclusion(verdict.status):
            self._console.notice(conclusion)
        for each in self._restarts.recoveries:
            self._console.notice(each.line)
        return verdict.status

    # Starting.

    def _start(self) -> Verdict | None:
        """Starts the servers, and the others once every server listens."""
        servers = [plan for plan in self._job.plans if plan.is_server]
        others = [plan for plan in self._job.plans if not plan.is_server]
        self._console.notice(f"the logs are in {self._job.log_dir}")
        self._console.notice(self._output.notice)
        verdict = self._protect()
        if servers and verdict is None:
            self._notice_start(servers)
            verdict = self._start_all(servers) or self._await_listening()
        if others and verdict is None:
            self._notice_start(others)
            verdict = self._start_all(others)
        if verdict is None:
            pids = {plan.name: self._tasks[plan.task].pid for plan in self._job.plans}
            self._tell({"pids": pids, "warning": self._warning})
        return verdict

    def _protect(self) -> Verdict | None:
        """Closes the ports before there are any."""
        ports = [plan.port for plan in self._job.plans]
        try:
            protection = reach.protect(self._job.network, ports)
        except reach.NetworkError as error:
            return Verdict(1, str(error))
        self._console.notice(protection.notice)
        self._warning = protection.notice if protection.is_open else ""
        if confined := protection.confined:
            self._selector.register(confined, selectors.EVENT_READ, confined.answer)
        return None

    def _notice_start(self, plans: list[TaskPlan]) -> None:
        self._console.notice(f"starting {names([plan.task for plan in plans])}")

    def _start_all(self, plans: list[TaskPlan]) -> Verdict | None:
        for plan in plans:
            is_leader = plan.task == self._leader
            before = self._tasks.get(plan.task)
            if before:
                self._close(before)
            try:
                task = SupervisedTask(
                    plan,
                    self._job.log_path(plan),
                    partial(self._show, plan),
                    environ=os.environ,
                    inherit_stdin=is_leader,
                    before=before,
                    may_report=bool(self._job.max_restarts),
                )
            except OSError as error:
                return Verdict(1, f"{plan.name} cannot be started: {error}")
            self._tasks[plan.task] = task
            self._selector.register(
                task, selectors.EVENT_READ, partial(self._read, task)
            )
            self._selector.register(
                task.reports, selectors.EVENT_READ, partial(self._read_reports, task)
            )
        return None

    def _await_listening(self) -> Verdict | None:
        """Waits for every server; None once they all listen on their ports."""
        deadline = time.monotonic() + self._job.startup_timeout
        missing = list(self._tasks.values())
        while missing := [task for task in missing if not readiness.listens(task)]:
            self._pump(_READINESS_INTERVAL)
            if self._signals or self._abandoned:
                return replace(self._interrupted(), reason="told to end at startup")
            for task in self._tasks.values():
                if task.exit is not None:
                    status = policy.exit_status(task.exit.code) or 1
                    return Verdict(status, readiness.explain_death(task))
            if time.monotonic() > deadline:
                return Verdict(1, readiness.explain_silence(missing, self._job))
        return None

    # Watching.

    def _watch(self) -> Verdict:
        """Waits until the job is over, or until somebody wants it to be."""
        self._wait(self._may_be_over)
        while again := self._restarts.due():
            if verdict := self._restarts.recover(again):
                return verdict
            self._wait(self._may_be_over)
        if self._leader in self._exits and not self._wanted_to_end():
            self._await_stragglers()
        if verdict := self._judge():
            return self._await_closing(verdict)
        if self._signals:
            self._forward(self._signals[0])
        elif not self._abandoned:
            rest = policy.unfinished(self._job.plans, self._exits)
            return Verdict(0, f"{names(rest)} did not end in time: ended")
        return self._interrupted()

    def _wanted_to_end(self) -> bool:
        return bool(self._judge() or self._signals or self._abandoned)

    def _may_be_over(self) -> bool:
        return self._wanted_to_end() or self._leader in self._exits

    def _await_stragglers(self) -> None:
        rest = policy.unfinished(self._job.plans, self._exits)
        timeout = self._job.straggler_timeout
        self._console.notice(f"waiting up to {timeout:g} s for {names(rest)} to end")
        self._wait(self._wanted_to_end, timeout)

    def _await_closing(self, verdict: Verdict) -> Verdict:
        """Gives the ps of a program that has succeeded time to end by themselves."""
        if verdict.status == 0:
            self._wait(
                lambda: (
                    not policy.closing(self._job.plans, self._exits)
                    or bool(self._signals or self._abandoned)
                ),
                self._job.grace_period,
            )
        return self._judge() or verdict

    def _close(self, task: SupervisedTask) -> None:
        self._read(task)
        for stream in (task, task.reports):
            if stream in self._selector.get_map():
                self._selector.unregister(stream)
        task.close()

    def _read_reports(self, task: SupervisedTask) -> None:
        reports = task.read_reports()
        if reports is None:
            self._selector.unregister(task.reports)
            return
        for report in reports:
            self._restarts.hear(task.plan, report)

    # Ending.

    def _forward(self, signum: int) -> None:
        """Gives the tasks that run the user's script time to save their work."""
        scripts = [task for task in self._tasks.values() if not task.plan.is_server]
        name = signal.Signals(signum).name
        alive = [task.plan.task for task in scripts if task.alive]
        if not alive:
            self._console.notice(f"{name}: nothing is started again")
            return
        self._console.notice(
            f"{name}: passed on to {names(alive)}, which may take "
            f"{self._job.grace_period:g} s to end; once more to kill at once"
        )
        for task in scripts:
            task.signal(signum)
        self._wait(
            lambda: not any(task.alive for task in scripts), self._job.grace_period
        )

    def _interrupted(self) -> Verdict:
        """The verdict on a job that was told to end: the leader's, if it has one."""
        code = self._exits.get(self._leader) if self._leader else 0
        if code is None:
            code = -(self._signals or [signal.SIGTERM])[0]
        return Verdict(policy.exit_status(code))

    def _judge(self) -> Verdict | None:
        return policy.judge(self._job.kind, self._job.plans, self._exits)

    def _report(self, verdict: Verdict) -> None:
        self._cluster.finish()
        if not verdict.reason:
            return
        self._console.notice(verdict.reason)
        self._tell({"error": verdict.reason})
        if failed := next((task for task, code in self._exits.items() if code), None):
            self._console.notice(self._output.last_words(self._tasks[failed]))

    def _end_gently(self) -> None:
        running = [task for task in self._tasks.values() if task.alive]
        for task in running:
            task.told_to_end = True
            task.signal(signal.SIGTERM)
        grace = self._job.grace_period
        self._wait(lambda: not any(task.alive for task in running), grace)
        if rest := [task.plan.task for task in running if task.alive]:
            self._console.notice(f"{names(rest)} did not end in {grace:g} s: killing")

    def _kill_rest(self) -> None:
        """Kills whatever is left, and takes the last output."""
        for task in self._tasks.values():
            task.told_to_end |= task.alive
        exits, survivors = processes.kill_descendants(_KILL_TIMEOUT)
        # Nobody is left to clean up after, and the terminal may have stopped.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if signal.SIGHUP in self._signals:
            self._console.mute()
        self._record(exits)
        if survivors:
            self._console.notice(f"could not be killed: {', '.join(survivors)}")
        tasks = self._tasks.values()
        self._wait(lambda: not any(map(self._is_open, tasks)), _DRAIN_TIMEOUT)
        for task in tasks:
            self._close(task)
        self._output.close()

    def _is_open(self, task: SupervisedTask) -> bool:
        return task in self._selector.get_map()

    # Events.

    def _wait(self, done: Callable[[], bool], timeout: float = float("inf")) -> None:
        deadline = time.monotonic() + timeout
        while not done() and (left := deadline - time.monotonic()) > 0:
            self._pump(left)

    def _pump(self, timeout: float) -> None:
        """Handles the events that come within `timeout` seconds."""
        if self._output.waiting:
            timeout = min(timeout, 1.0)
        if self._restarts.pending:
            timeout = min(timeout, _RECOVERY_INTERVAL)
        timeout = min(timeout, self._stopped.interval, self._cluster.interval)
        for key, _ in self._selector.select(timeout):
            key.data()
        self._record(processes.reap())
        self._restarts.check()
        self._stopped.check(self._tasks.values())
        self._cluster.check(self._tasks.values())
        self._output.tick()

    def _read(self, task: SupervisedTask) -> None:
        if self._is_open(task) and not task.read():
            self._selector.unregister(task)
        self._cluster.use.hear(task.plan.task, task.partial)
        self._output.partial(task)

    def _show(self, plan: TaskPlan, line: str) -> None:
        self._cluster.use.hear(plan.task, line)
        self._output.line(plan, line)

    def _record(self, exits: list[processes.Exit]) -> None:
        tasks = {task.pid: task for task in self._tasks.values() if task.alive}
        for exit in exits:
            if task := tasks.get(exit.pid):  # Others are adopted orphans.
                self._read(task)  # Its last words, before it is reported.
                task.ended(exit)
                self._exits[task.plan.task] = exit.code

    def _hear(self) -> None:
        """The other end of the socket never speaks: it is only ever closed."""
        self._selector.unregister(self._control)
        self._abandoned = True

    def _tell(self, event: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(event).encode() + b"\n")

    def _listen_for_signals(self) -> None:
        woken, waker = socket.socketpair()
        woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker  # Open for as long as this object lives.
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ, lambda: woken.recv(4096))
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGCHLD:
            return
        # Raised, since the terminal may have stopped, and a write hang on it.
        hurried = signum == signal.SIGHUP or bool(self._signals)
        self._signals.append(signum)
        if hurried and not self._impatient:
            self._impatient = True
            raise _KillNow


def main() -> None:
    """Takes the number of the control socket as the only argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    with control.makefile("rb") as lines:
        request = json.loads(lines.readline())
    job = Job.from_json(request["job"])
    streams = (sys.stdout, sys.stderr) if job.echo else (None, None)
    console = Console([plan.name for plan in job.plans], *streams)
    supervisor = Supervisor(job, control, console)
    if parent := request["parent"]:
        # No task has been started yet, so the signal may still just kill.
        processes.die_with_parent(parent, signal.SIGHUP)
    status = supervisor.run()
    # The interpreter would turn a closed standard output into status 120.
    os._exit(status)
