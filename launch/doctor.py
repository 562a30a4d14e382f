r"""Diagnoses a cluster in less than a minute: what is wrong, and what to do.

    python -m launch.doctor --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 \
        --chief_hosts=d:2222

The cluster is given by the same flags as for launch.task, by --tf_config, by --pid, by
--job, or by the environment variable TF_CONFIG. Without these, it is the cluster that is
running on this machine, or the job that was started from it. The exit status is 0 if
everything is fine, 1 if something is wrong or unknown, and 2 if the flags are wrong.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from launch.diagnose import definition, running, shown
from launch.diagnose.agreement import between_tasks
from launch.diagnose.definition import STRATEGIES, Definition
from launch.diagnose.diagnosis import each_task
from launch.diagnose.finding import Finding, Level
from launch.engines import record
from launch.engines.record import Record
from launch.flags import command_line
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.job.tunnel import LOOPBACK
from launch.network import private_network
from tf_config import JOBS, split_address
from tf_config.contract import TF_CONFIG

_STEPS = 4  # of a probe, each with its own --timeout
# Four steps of this length still take less than a minute.
_LONGEST_TIMEOUT = 14.0
# psutil raises OverflowError for a larger one.
_LARGEST_PID = 2**31 - 1


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns its exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, rest = command_line.parse_flags(argv, _define_flags(), __doc__ or "")
    if rest:
        raise UsageError(f"the doctor takes no script; received {' '.join(rest)!r}")
    if not 0 < values.timeout <= _LONGEST_TIMEOUT:
        raise UsageError(
            f"--timeout must be > 0 and at most {_LONGEST_TIMEOUT:g} seconds; received "
            f"{values.timeout}"
        )
    defined = _definition(values)
    found = [*defined.findings]
    if values.strategy:
        found.append(definition.roles(defined, values.strategy))
    if not values.dry_run:
        found += _probe(defined, values.timeout)
    if not found:
        found.append(Finding(Level.OK, "cluster", TF_CONFIG, "it is valid"))
    return shown.show(found, values.json)


def _probe(defined: Definition, timeout: float) -> list[Finding]:
    # gRPC loads slowly and starts threads, and `private_network.join` needs a process
    # with one thread.
    from launch.diagnose.probe import probe_all

    reports = probe_all(defined.addresses, timeout)
    listeners = running.listeners(reports)
    return [*each_task(reports, listeners), *between_tasks(reports)]


def _definition(values: Flags) -> Definition:
    hosts = {job: getattr(values, f"{job}_hosts") for job in JOBS}
    given = {
        "the hosts": any(hosts.values()),
        "--tf_config": bool(values.tf_config),
        "--pid": values.pid is not None,
        "--job": values.job is not None,
    }
    if sum(given.values()) > 1:
        names = " and ".join(name for name, is_given in given.items() if is_given)
        raise UsageError(f"{names} each give a cluster: use only one of them")
    if given["the hosts"]:
        return definition.from_hosts(hosts, values.job_name, values.task_index)
    if values.job_name or values.task_index is not None:
        raise UsageError(
            "--job_name and --task_index need the addresses of the cluster: add --ps_hosts "
            "and the like"
        )
    if given["--tf_config"]:
        return definition.from_text(_text(values.tf_config))
    if given["--pid"]:
        return _of_process(values.pid)
    if given["--job"]:
        return _of_job(record.load(values.job))
    if os.environ.get(TF_CONFIG, "").strip():
        return _of_task(os.environ)
    return _of_this_machine()


def _text(source: str) -> str:
    if source.lstrip().startswith("{"):
        return source
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            "--tf_config must be the JSON text of a TF_CONFIG, or a file that contains it; "
            f"cannot read {source!r}: {getattr(error, 'strerror', None) or error}"
        ) from None


def _of_process(pid: int) -> Definition:
    if pid > _LARGEST_PID or not psutil.pid_exists(pid):
        raise UsageError(f"no process {pid}: give the process id of a task as --pid")
    environ = running.environ_of(pid)
    if not environ.get(TF_CONFIG):
        raise UsageError(
            f"process {pid} has no TF_CONFIG, or you may not read it: give the process id "
            "of a task, and run the doctor as the same user"
        )
    if running.in_other_network(pid):
        try:
            private_network.join(pid)
        except OSError as error:
            raise UsageError(
                f"process {pid} has its own network, which cannot be entered "
                f"({error.strerror}): run the doctor as the user who started it"
            ) from None
    return _of_task(environ)


def _of_task(environ: Mapping[str, str]) -> Definition:
    defined = definition.from_text(environ[TF_CONFIG])
    found = definition.proxy(defined, environ)
    return replace(defined, findings=(*defined.findings, *found))


def _of_job(job: Record) -> Definition:
    if not job.tf_config:
        raise UsageError(
            f"job {job.name} has no addresses yet: see python -m launch.jobs status "
            f"{job.name}"
        )
    if job.engine == "kubernetes":
        pod = next(iter(job.tasks.values()))[0]
        raise UsageError(
            f"the tasks of job {job.name} can be reached from its pods only: run "
            f"kubectl exec {pod} -- python -m launch.doctor, with the pod that "
            f"kubectl get pods shows for it"
        )
    defined = definition.from_text(job.tf_config)
    there = [split_address(each)[0] for each in defined.addresses.values()]
    if set(there) != {LOOPBACK}:
        return defined
    # Its tasks are at the same addresses on each of its hosts, and nowhere else.
    for each in running.clusters():
        if running.is_same_cluster(each.tf_config, job.tf_config):
            return _of_process(each.pid)
    hosts = list(dict.fromkeys(host for host, *_ in job.tasks.values()))
    raise UsageError(
        f"the tasks of job {job.name} can be reached from its hosts only "
        f"({', '.join(hosts)}): run python -m launch.doctor on one of them"
    )


def _of_this_machine() -> Definition:
    found = running.clusters()
    jobs = [each for each in record.everything() if each.is_alive]
    if len(found) + len(jobs) > 1:
        choices = [
            *(f"  --pid={each.pid}  {each}" for each in found),
            *(f"  --job={each.name}  since {each.started}" for each in jobs),
        ]
        raise UsageError(
            f"{len(choices)} clusters are running here: choose one\n"
            + "\n".join(choices)
        )
    if jobs:
        return _of_job(jobs[0])
    if not found:
        raise UsageError(
            "no cluster found: TF_CONFIG is not set, and none of your processes on this "
            "machine has it. Give --tf_config, or the same flags as for launch.task"
        )
    return _of_process(found[0].pid)


def _define_flags() -> Flags:
    values = Flags()
    command_line.define_task(values)
    values.text(
        "tf_config",
        None,
        "TF_CONFIG to check: its JSON text, or a file that contains it.",
    )
    values.integer(
        "pid",
        None,
        "Process on this machine whose TF_CONFIG and network to use.",
        lower_bound=1,
    )
    values.text(
        "job",
        None,
        "Name of a job that an engine's command has started from this machine.",
    )
    values.choice(
        "strategy", None, STRATEGIES, "Strategy to check the cluster's jobs against."
    )
    values.number(
        "timeout", 5.0, f"Seconds allowed for each of the {_STEPS} steps of a probe."
    )
    values.switch("json", False, "Print the findings as JSON.")
    values.switch("dry_run", False, "Check the addresses without connecting to them.")
    command_line.define_help(values)
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.doctor")
