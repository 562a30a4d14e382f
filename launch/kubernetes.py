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
from collections.abc import Mapping, Sequence

from absl import flags

from launch import cluster_flags, command_line, engine_flags, env_flag, kubernetes_flags
from launch.engines import kubernetes, kubernetes_launcher, kubernetes_logs, record
from launch.engines import kubernetes_objects as objects
from launch.engines.kubernetes_client import KubernetesClient
from launch.engines.kubernetes_objects import KubernetesJob
from launch.engines.kubernetes_pods import JOB_VARIABLE, Pods
from launch.engines.record import Record
from launch.plan import Program, task_name
from launch.program_kind import kind_of_script
from launch.secure import mode
from launch.supervise.processes import check_platform
from tf_config import contract

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
    if name := os.environ.get(JOB_VARIABLE):
        return kubernetes_launcher.run(
            kubernetes_launcher.layout(name, counts),
            program,
            kind,
            has_failure_policy=values.pod_failure_policy is not False,
            protection=kubernetes_flags.protection(values),
            connect_timeout=values.connect_timeout + _LATER,
            checkpoint_dir=values.checkpoint_dir,
            **cluster_flags.limits(values),
        )
    name = record.name_of(values.name, program.script)
    where = {"context": values.context or "", "namespace": values.namespace or ""}
    has_policy = values.pod_failure_policy
    if values.dry_run:
        job = _job(values, program, kind, name, counts, has_policy is not False)
        print(kubernetes.render(job), end="")
        return 0
    client = KubernetesClient(**where)
    if has_policy is None:
        has_policy = client.version() >= objects.OLDEST_WITH_POLICY
    job = _job(values, program, kind, name, counts, has_policy)
    kubernetes.render(job)
    record.tidy()
    where["namespace"] = client.namespace
    where["kubeconfig"] = os.environ.get("KUBECONFIG", "")
    kept = _record(values, program, kind, job, where)
    if values.detach:
        kubernetes.detach(job, kept)
        print(name)
        return 0
    return kubernetes.run(job, kept)


def _job(
    values: flags.FlagValues,
    program: Program,
    kind: str,
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
    job = KubernetesJob(
        pods=pods,
        counts=counts,
        has_failure_policy=has_policy,
        key=secrets.token_hex(_KEY_BYTES),
        max_restarts=values.max_restarts,
        namespace=values.namespace or "",
        connect_timeout=values.connect_timeout,
        min_workers=values.min_workers,
    )
    # What does not fit together is said here, and not by a pod.
    at = kubernetes_launcher.layout(name, counts)
    there = kubernetes_launcher.surroundings(at)
    kubernetes_launcher.plan(at, program, kind, there, mode.POLICY)
    return job


def _record(
    values: flags.FlagValues,
    program: Program,
    kind: str,
    job: KubernetesJob,
    where: Mapping[str, str],
) -> Record:
    at = kubernetes_launcher.layout(job.name, job.counts)
    there = kubernetes_launcher.surroundings(at)
    planned = kubernetes_launcher.plan(at, program, kind, there, mode.POLICY)
    log_dir = os.path.abspath(values.log_dir or os.path.join("logs", job.name))
    paths = kubernetes_logs.paths(
        log_dir, [task_name(each.task) for each in planned.plans]
    )
    return kubernetes.with_output(
        Record(
            name=job.name,
            engine="kubernetes",
            log_dir=log_dir,
            tf_config=planned.plans[0].env[contract.TF_CONFIG],
            tasks={
                plan.name: (
                    plan.remote.host if plan.remote else "",
                    plan.address,
                    paths[plan.name],
                )
                for plan in planned.plans
            },
            grace_period=values.grace_period,
            job_id=f"{where['namespace']}/{job.name}",
            where=where,
            min_workers=values.min_workers,
        )
    )


def _counts(values: flags.FlagValues, kind: str) -> dict[str, int]:
    counts = cluster_flags.counts(values, kind)
    engine_flags.check_number(sum(counts.values()), _MOST_TASKS)
    return counts


if __name__ == "__main__":
    command_line.run(main, "launch.kubernetes")
