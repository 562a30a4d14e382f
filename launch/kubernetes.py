"""Runs a cluster on Kubernetes.

    python -m launch.kubernetes --image=IMAGE --num_ps=2 --num_workers=4 train.py --epochs=5

Creates the job's objects, shows its output, and deletes them when it has ended;
--dry_run prints them for kubectl, as JSON. The image needs the script, tfdist and TensorFlow. Each
task has a pod of its own, the ps on different nodes where there are enough; one more pod
supervises them. The job ends, and lost tasks are restarted, as with launch.local. Flags
after the script belong to the script.
"""

import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launch.engines import kubernetes, kubernetes_logs, record
from launch.engines import kubernetes_objects as objects
from launch.engines.hosts import Host
from launch.engines.kubernetes_client import KubernetesClient
from launch.engines.kubernetes_objects import RETRIED, KubernetesJob, hostname
from launch.engines.kubernetes_pods import (
    END_FILE,
    JOB_VARIABLE,
    LAUNCHER,
    LOG_PREFIX,
    PORT,
    Pods,
)
from launch.engines.layout import Layout, Surroundings, record_of
from launch.engines.planner import HostPlanner
from launch.engines.record import Record
from launch.flags import command_line, engine_flags, kubernetes_flags
from launch.flags.values import Flags
from launch.job.job import Job
from launch.job.plan import Program, tasks_of
from launch.job.script_source import kind_of_script
from launch.loopback import foreground
from launch.remote import connector
from launch.secure import mode
from launch.supervise.processes import check_platform
from tf_config import contract
from tf_config.contract import EXIT_USAGE

_MOST_TASKS = 10_000
_KEY_BYTES = 32
# A pod that waits for a launcher's next pod waits as long, and a while longer.
_PATIENCE = 600.0
_LATER = 30.0
_ENDED_EARLY = 1
_define_flags = kubernetes_flags.define
# Flags that the launcher's pod has to know; all others are the pods' own.
_INSIDE = (
    *("num_ps", "num_workers", "chief", "evaluator", "chatty", "program", "secure"),
    "progress",
    *("max_restarts", "checkpoint_dir", "connect_timeout"),
    *("pod_failure_policy", "startup_timeout", "grace_period", "straggler_timeout"),
    *("restart_window", "stall_timeout", "min_workers", "import"),
)


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns the job's exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    check_platform()
    kubernetes_flags.check(values)
    kind = kind_of_script(program, values.program, values.num_ps)
    counts = engine_flags.counts(values, kind, _MOST_TASKS)
    planner = engine_flags.planner(values, program, kind, first_port=PORT)
    has_policy = values.pod_failure_policy
    if name := os.environ.get(JOB_VARIABLE):
        program = replace(program, command=os.environ.get(contract.COMMAND, ""))
        planner = replace(
            planner,
            program=program,
            protection=kubernetes_flags.protection(values),
            timeout=values.connect_timeout + _LATER,
        )
        at = _layout(name, counts)
        return _run_in_pod(at, planner, has_failure_policy=has_policy is not False)
    name = record.name_of(values.name, program.script)
    # Report contradictions between flags here, before any pod exists.
    log_dir = os.path.abspath(values.log_dir or os.path.join("logs", name))
    options, at = {**planner.options, "log_dir": log_dir}, _layout(name, counts)
    planner = replace(planner, protection=mode.POLICY, options=options)
    # As the launcher's pod will plan it, with the logs where they are copied to.
    example = planner.example(at, _surroundings(at))
    if values.dry_run:
        job = _job(values, program, name, counts, has_policy is not False)
        print(kubernetes.render(job), end="")
        return 0
    client = KubernetesClient(values.context or "", values.namespace or "")
    if has_policy is None:
        has_policy = client.version() >= objects.OLDEST_WITH_POLICY
    job = _job(values, program, name, counts, has_policy)
    kubernetes.render(job)
    kept = _record(values, example, name, client.namespace)
    return engine_flags.start(values, kubernetes, job, kept)


def _layout(name: str, counts: Mapping[str, int]) -> Layout:
    """Returns the layout of a job: every task has a pod of its own."""
    everyone = tasks_of(counts)
    names = [hostname(name, task) for task in everyone]
    where = {task: index for index, task in enumerate(everyone)}
    return Layout(
        [Host(each) for each in names], [f"{each}.{name}" for each in names], where
    )


def _surroundings(at: Layout) -> Surroundings:
    """Returns the surroundings of a task in its pod, the same as this process's."""
    connect = [
        (sys.executable, "-m", "launch.remote.connector", at.addresses[host], str(task))
        for task, host in at.where.items()
    ]
    return Surroundings(sys.executable, os.getcwd(), {}, connect)


def _run_in_pod(at: Layout, planner: HostPlanner, *, has_failure_policy: bool) -> int:
    """Runs the job, and returns the exit status for Kubernetes.

    The job's own exit status is in `END_FILE`. A launcher that is taken away with its
    pod writes none, and Kubernetes starts another.
    """
    # The first process of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    signals: list[int] = []
    try:
        log_dir = tempfile.mkdtemp(prefix=LOG_PREFIX)
        planner = replace(planner, options={**planner.options, "log_dir": log_dir})
        job = planner.on_hosts(at, _surroundings(at))
        code = foreground.run(job, on_signal=signals.append)
    except ValueError as error:
        print(f"launch.kubernetes: error: {error}", file=sys.stderr, flush=True)
        code = EXIT_USAGE
    if signals and code:
        return 128 + signal.SIGTERM
    connector.end([(at.addresses[host], str(task)) for task, host in at.where.items()])
    Path(END_FILE).write_text(json.dumps({"code": code}))
    if not has_failure_policy:
        # Kubernetes would start it again, with whatever other status.
        return 0
    return _ENDED_EARLY if code in RETRIED else code


def _record(values: Flags, example: Job, name: str, namespace: str) -> Record:
    return replace(
        record_of(example, name, "kubernetes"),
        output=kubernetes_logs.paths(example.log_dir, [])[LAUNCHER],
        job_id=f"{namespace}/{name}",
        where={
            "context": values.context or "",
            "namespace": namespace,
            "kubeconfig": os.environ.get("KUBECONFIG", ""),
        },
        min_workers=values.min_workers,
    )


def _job(
    values: Flags,
    program: Program,
    name: str,
    counts: dict[str, int],
    has_policy: bool,
) -> KubernetesJob:
    # The pod finds the script, and must not count other tasks than there are pods.
    asked = [f"--num_ps={counts['ps']}", f"--{'' if counts['chief'] else 'no'}chief"]
    asked += [
        values[each].serialize()
        for each in _INSIDE
        if values[each].present and each not in ("num_ps", "chief")
    ]
    if not has_policy and values.pod_failure_policy is None:
        asked.append("--nopod_failure_policy")
    if not values["grace_period"].present:
        asked.append(values["grace_period"].serialize())
    pods = Pods(
        name=name,
        image=values.image,
        command=[
            *(values.python, "-m", "launch.kubernetes", *filter(None, asked)),
            # A pod has no use for it, but the command insists on the flag.
            *("--image=", *program.argv),
        ],
        python=values.python,
        grace_period=values.grace_period,
        patience=_PATIENCE + values.connect_timeout,
        work_dir=values.work_dir or "",
        env={contract.COMMAND: program.command, **engine_flags.env_of(values)},
        resources=kubernetes_flags.resources(values, counts),
        ps_node_selector=kubernetes_flags.labels(values.ps_node_selector),
        extra=kubernetes_flags.pod_spec(values),
    )
    return KubernetesJob(
        pods=pods,
        counts=counts,
        has_failure_policy=has_policy,
        key=secrets.token_hex(_KEY_BYTES),
        max_restarts=values.max_restarts,
        namespace=values.namespace or "",
        connect_timeout=values.connect_timeout,
        min_workers=values.min_workers,
    )


if __name__ == "__main__":
    command_line.run(main, "launch.kubernetes")
