"""The process that is the parent of every task of a job on this machine.

`launch.supervise.handle` starts it in its own session and sends it the job over a
socket. It starts the servers, waits until they listen, starts the other tasks, and
watches them. It ends all of them when the job is over, when it is told to, or when the
process that started it dies, and exits once it has no descendant left.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from functools import partial

from launch.console.console import Console
from launch.job.job import Job
from launch.job.plan import EVERY_TASK, TaskPlan
from launch.network import reach
from launch.remote import host
from launch.secure import mode
from launch.supervise import handle, policy, processes, readiness
from launch.supervise.cluster_use import ClusterUse, ClusterWatch
from launch.supervise.end_request import EndRequest, KillNow
from launch.supervise.event_loop import EventLoop
from launch.supervise.output import Output
from launch.supervise.policy import Verdict
from launch.supervise.progress import ProgressLine
from launch.supervise.recovery import names
from launch.supervise.remote_process import Heartbeat
from launch.supervise.restarts import Restarts
from launch.supervise.running_tasks import RunningTasks, StoppedTasks
from launch.supervise.starter import Starter
from launch.supervise.summary import summarize
from launch.supervise.tunnels import Tunnels
from tf_config import Task


class Supervisor:
    """Runs one job from its start to its end; see `run`."""

    def __init__(self, job: Job, control: socket.socket, console: Console) -> None:
        self._job = job
        self._control = control
        self._console = console
        self._leader = policy.leader(job.plans)
        self._loop = EventLoop()
        self._end_request = EndRequest(control, self._loop)
        self._output = Output(job, console)
        self._use = ClusterUse(job.plans)
        heartbeat = Heartbeat()
        self._starter = Starter(job, self._loop, heartbeat)
        self._tunnels = Tunnels(job, self._loop, console, heartbeat)
        self._tasks = RunningTasks(
            job, self._loop, self._output, self._use, self._starter, self._tunnels
        )
        self._progress = ProgressLine(
            job, console, lambda: len(self._restarts.recoveries)
        )
        loop, end, hear = self._loop, self._end_request, self._progress.hear
        self._restarts = Restarts(job, self._tasks, loop, end, console, hear)
        self._watch = ClusterWatch(
            self._use,
            job.plans,
            lambda: {task.pid for task in self._tasks.alive},
            console,
        )
        stopped = StoppedTasks(job.stall_timeout, self._tasks, console)
        # Exits are recorded before anything looks at what is left.
        self._loop.add_checks([self._tasks, self._tunnels, self._restarts, stopped])
        self._loop.add_checks([self._watch, self._output, self._progress])

    def run(self) -> int:
        """Runs the job to its end, and returns its exit status."""
        processes.adopt_orphans()
        marks = [time.monotonic()]
        verdict = None
        try:
            self._end_request.listen()
            verdict = self._start()
            marks.append(time.monotonic())
            verdict = verdict or self._await_end()
            marks.append(time.monotonic())
            self._report(verdict)
            self._end_gently()
            self._end_request.stop_raising()  # Everything is killed next in any case.
        except KillNow:
            verdict = verdict or self._interrupted()
        self._progress.end()
        self._kill_rest()
        late = policy.failed_evaluation(self._tasks.exits)
        if late and not verdict.status and not self._end_request:
            verdict = late
            self._report(verdict)
        # After `KillNow`, the phases that were not reached count as 0 s.
        marks += [time.monotonic()] * (4 - len(marks))
        self._summarize(verdict, marks)
        return verdict.status

    # Starting.

    def _start(self) -> Verdict | None:
        """Starts the servers, then the other tasks once every server listens."""
        servers = [plan for plan in self._job.plans if plan.is_server]
        others = [plan for plan in self._job.plans if not plan.is_server]
        self._console.notice(f"the logs are in {self._job.log_dir}")
        self._console.notice(self._output.notice)
        if verdict := self._protect():
            return verdict
        self._tunnels.start()  # They get ready while the servers do.
        if servers and (verdict := self._start_tasks(servers)):
            return verdict
        tasks, job, end = list(self._tasks), self._job, self._end_request
        verdict = readiness.await_all(tasks, self._tunnels, self._loop, job, end)
        if end:
            return self._ended_during_startup()
        if verdict:
            return verdict
        if late := [each.plan.task for each in tasks if not readiness.listens(each)]:
            self._console.notice(
                f"not waiting for {names(late)} (--min_workers={job.min_workers})"
            )
        if others and (verdict := self._start_tasks(others)):
            return verdict
        pids = {process.plan.name: process.pid for process in self._tasks}
        self._tell({"pids": pids, "warning": self._warning})
        return None

    def _protect(self) -> Verdict | None:
        """Closes the ports before any task can open one."""
        job = self._job
        self._warning = ""
        if job.hosts:  # The agents close the ports there.
            self._console.notice(mode.notice(job.protection, job.hosts))
            return None
        try:
            protection = reach.protect(job.network, [each.port for each in job.plans])
        except reach.ProtectionError as error:
            return Verdict(1, str(error))
        self._console.notice(protection.notice)
        self._warning = protection.notice if protection.is_open else ""
        if confined := protection.confined:
            self._loop.register(confined, confined.answer)
        return None

    def _start_tasks(self, plans: list[TaskPlan]) -> Verdict | None:
        self._console.notice(f"starting {names([plan.task for plan in plans])}")
        self._starter.begin()
        self._loop.wait(
            lambda: self._starter.is_ready or bool(self._end_request),
            self._job.startup_timeout,
        )
        if self._end_request:
            return self._ended_during_startup()
        return self._tasks.start(plans)

    def _ended_during_startup(self) -> Verdict:
        return replace(self._interrupted(), reason="the job was ended during startup")

    # Waiting for the end.

    def _await_end(self) -> Verdict:
        """Waits until the job is over, or somebody wants it to be."""
        self._loop.wait(self._may_be_over)
        while True:
            while again := self._restarts.due():
                if verdict := self._restarts.recover(again):
                    if verdict.lost_host:
                        self._prepare_to_move(verdict.lost_host, again)
                    return verdict
                self._loop.wait(self._may_be_over)
            if self._leader not in self._tasks.exits or self._is_over():
                break
            self._await_stragglers()
            # A worker that came too late to take part again has failed.
            if not self._restarts.due():
                break
        if verdict := self._judge():
            return self._await_closing(verdict)
        if self._end_request.signals:
            self._forward(self._end_request.signals[0])
        elif not self._end_request:
            rest = self._unfinished()
            return Verdict(0, f"{names(rest)} did not end in time: ending the job")
        return self._interrupted()

    def _is_over(self) -> bool:
        return bool(self._judge() or self._end_request)

    def _may_be_over(self) -> bool:
        return self._is_over() or self._leader in self._tasks.exits

    def _await_stragglers(self) -> None:
        rest = self._unfinished()
        timeout = self._job.straggler_timeout
        self._console.notice(f"waiting up to {timeout:g} s for {names(rest)} to end")
        self._loop.wait(self._is_over, timeout)

    def _unfinished(self) -> list[Task]:
        exits, given_up = self._tasks.exits, self._restarts.given_up
        return policy.unfinished(self._job.plans, exits, given_up)

    def _await_closing(self, verdict: Verdict) -> Verdict:
        """Gives every ps that runs the script of a successful job time to end."""
        if verdict.status == 0:
            plans, exits = self._job.plans, self._tasks.exits
            self._loop.wait(
                lambda: bool(self._end_request or not policy.closing(plans, exits)),
                self._job.grace_period,
            )
        # A ps may fail while it ends.
        return self._judge() or verdict

    def _judge(self) -> Verdict | None:
        exits, given_up = self._tasks.exits, self._restarts.given_up
        verdict = policy.judge(self._job.kind, self._job.plans, exits, given_up)
        if verdict and verdict.status:
            # A server that ends by itself has failed, too.
            by_itself = self._job.kind != EVERY_TASK
            failed = [task for task in exits if exits[task] != 0 or by_itself]
            more = next(filter(None, map(self._tasks.why, failed)), "")
            more += self._restarts.shortage(failed)
            verdict = replace(verdict, reason=verdict.reason + more)
        return verdict or self._tunnels.failure

    def _interrupted(self) -> Verdict:
        """Returns the verdict on a job that was told to end: its leader's status."""
        code = self._tasks.exits.get(self._leader) if self._leader else 0
        if code is None:
            code = -(self._end_request.signals or [signal.SIGTERM])[0]
        return Verdict(policy.exit_status(code))

    def _prepare_to_move(self, gone: str, lost: tuple[Task, ...]) -> None:
        """Lets the script save, if it has not lost its variables."""
        self._tell({"lost_host": gone})
        if all(task.job == "worker" for task in lost):
            self._forward(signal.SIGTERM)

    # Ending.

    def _forward(self, signum: int) -> None:
        """Gives the tasks that run the user's script time to save their work."""
        # Not the servers: a script may have to save variables that live on them.
        scripts = [task for task in self._tasks.alive if not task.plan.is_server]
        name = signal.Signals(signum).name
        if not scripts:
            self._console.notice(f"{name}: not restarting anything")
            return
        grace = self._job.grace_period
        self._console.notice(
            f"{name}: forwarded to {names([task.plan.task for task in scripts])}, with "
            f"{grace:g} s to end; repeat it to kill them at once"
        )
        for task in scripts:
            task.signal(signum)
        self._tasks.end(scripts, grace)

    def _report(self, verdict: Verdict) -> None:
        self._watch.finish()
        if not verdict.reason:
            return
        self._console.notice(verdict.reason)
        self._tell({"error": verdict.reason})
        exits = self._tasks.exits
        if failed := next((task for task, code in exits.items() if code), None):
            self._console.notice(self._output.last_words(self._tasks[failed]))

    def _end_gently(self) -> None:
        grace = self._job.grace_period
        if rest := self._tasks.end_gently(grace):
            late = names([task.plan.task for task in rest])
            self._console.notice(f"{late} did not end within {grace:g} s: killing")

    def _kill_rest(self) -> None:
        survivors = self._tasks.kill_everything()
        # No process is left that this one would have to end first. So a hangup may kill
        # it from here on, even if a write to a stopped terminal blocks.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if signal.SIGHUP in self._end_request.signals:
            self._console.mute()
        if survivors:
            self._console.notice(f"could not kill {', '.join(survivors)}")
        self._tasks.close()

    def _summarize(self, verdict: Verdict, marks: list[float]) -> None:
        note = partial(self._use.note, status=verdict.status)
        self._console.notice(summarize(self._job, self._tasks, note, marks))
        if conclusion := self._use.conclusion(verdict.status):
            self._console.notice(conclusion)
        if verdict.status and self._output.advice:
            self._console.notice(self._output.advice)
        for each in self._restarts.recoveries:
            self._console.notice(each.line)

    def _tell(self, event: dict[str, object]) -> None:
        # The process that started the job may be gone, which ends the job in any case.
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(event).encode() + b"\n")


def main() -> None:
    """Runs the supervisor."""
    control, (job, parent) = handle.received()
    streams = (sys.stdout, sys.stderr) if job.echo else (None, None)
    console = Console([plan.name for plan in job.plans], *streams)
    supervisor = Supervisor(job, control, console)
    if parent:
        # No task has been started yet, so the default action of the signal is fine.
        host.die_with_parent(parent, signal.SIGHUP)
    status = supervisor.run()
    # The interpreter would turn a closed standard output into status 120.
    os._exit(status)
