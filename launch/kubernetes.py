"""Runs a cluster on Kubernetes.

    python -m launch.kubernetes --image=IMAGE --num_ps=2 --num_workers=4 train.py --epochs=5

Creates the job's objects, shows its output, and deletes them when it has ended;
--dry_run prints them for kubectl. The image needs the script, tfdist and TensorFlow. Each
task has a pod of its own, the ps on different nodes where there are enough; one more pod
supervises them. The job ends, and lost tasks are restarted, as with launch.local. Flags
after the script belong to the script.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace

from absl import flags

from launch import cluster_flags, command_line, engine_flags, env_flag, kubernetes_flags
from launch.engines import kubernetes, kubernetes_launcher, kubernetes_logs, record
from launch.engines import kubernetes_objects as objects
from launch.engines.kubernetes_client import KubernetesClient
from launch.engines.kubernetes_objects import KubernetesJob
from launch.engines.kubernetes_pods import JOB_VARIABLE, LAUNCHER, PORT, Pods
from launch.engines.layout import record_of
from launch.engines.planner import HostPlanner
from launch.engines.record import Record
from launch.job import Job
from launch.plan import Program
from launch.program_kind import kind_of_script
from launch.secure import mode
from launch.supervise.processes import check_platform

_MOST_TASKS = 10_000
_KEY_BYTES = 32
# A pod that waits for a launcher's next pod waits as long, and a while longer.
_PATIENCE = 600.0
_LATER = 30.0
_define_flags = kubernetes_flags.define
# What the launcher's pod has to know; everything else is the pods' own.
_INSIDE = (
    *("num_ps", "num_workers", "chief", "evaluator", "chatty", "program", "secure"),
    *("max_restarts", "checkpoint_dir", "connect_timeout"),
    *("pod_failure_policy", "startup_timeout", "grace_period", "straggler_timeout"),
    *("restart_window", "stall_timeout", "min_workers"),
)


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns the job's exit status.

    Raises:
        UsageError: If the flags are wrong.
        EngineError: If Kubernetes refuses the job, or cannot run its pods in time.
        RecordError: If the job's name is wrong, or another job has it.
        PlanError: If the program does not fit the cluster.
        PlatformError: If this machine does not run Linux.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    check_platform()
    kubernetes_flags.check(values)
    kind = kind_of_script(program, values.program)
    counts = _counts(values, kind)
    planner = engine_flags.planner(values, program, kind, first_port=PORT)
    has_policy = values.pod_failure_policy
    if name := os.environ.get(JOB_VARIABLE):
        planner = replace(
            planner,
            protection=kubernetes_flags.protection(values),
            timeout=values.connect_timeout + _LATER,
        )
        at = kubernetes_launcher.layout(name, counts)
        return kubernetes_launcher.run(
            at, planner, has_failure_policy=has_policy is not False
        )
    name = record.name_of(values.name, program.script)
    # What does not fit together is said here, and not by a pod.
    example = _example(values, planner, name, counts)
    if values.dry_run:
        job = _job(values, program, name, counts, has_policy is not False)
        print(kubernetes.render(job), end="")
        return 0
    client = KubernetesClient(values.context or "", values.namespace or "")
    if has_policy is None:
        has_policy = client.version() >= objects.OLDEST_WITH_POLICY
    job = _job(values, program, name, counts, has_policy)
    kubernetes.render(job)
    record.tidy()
    kept = _record(values, example, name, client.namespace)
    if values.detach:
        kubernetes.detach(job, kept)
        print(name)
        return 0
    return kubernetes.run(job, kept)


def _example(
    values: flags.FlagValues, planner: HostPlanner, name: str, counts: dict[str, int]
) -> Job:
    """Plans the job as the launcher's pod will, with the logs where they are copied to."""
    log_dir = os.path.abspath(values.log_dir or os.path.join("logs", name))
    at = kubernetes_launcher.layout(name, counts)
    options = {**planner.options, "log_dir": log_dir}
    planner = replace(planner, protection=mode.POLICY, options=options)
    return planner.example(at, kubernetes_launcher.surroundings(at))


def _record(
    values: flags.FlagValues, example: Job, name: str, namespace: str
) -> Record:
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
    values: flags.FlagValues,
    program: Program,
    name: str,
    counts: dict[str, int],
    has_policy: bool,
) -> KubernetesJob:
    asked = [values[each].serialize() for each in _INSIDE if values[each].present]
    if not has_policy and values.pod_failure_policy is None:
        asked.append("--nopod_failure_policy")
    if not values["grace_period"].present:
        asked.append(values["grace_period"].serialize())
    pods = Pods(
        name=name,
        image=values.image,
        command=[
            *(values.python, "-m", "launch.kubernetes", *filter(None, asked)),
            *("--image=", *program.argv),
        ],
        python=values.python,
        grace_period=values.grace_period,
        patience=_PATIENCE + values.connect_timeout,
        work_dir=values.work_dir or "",
        env=env_flag.parse(values.env),
        resources=kubernetes_flags.resources(values, counts),
        anti_affinity=values.anti_affinity,
        gpu_resource=values.gpu_resource,
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


def _counts(values: flags.FlagValues, kind: str) -> dict[str, int]:
    counts = cluster_flags.counts(values, kind)
    engine_flags.check_number(sum(counts.values()), _MOST_TASKS)
    return counts


if __name__ == "__main__":
    command_line.run(main, "launch.kubernetes")
