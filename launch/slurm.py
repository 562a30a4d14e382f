"""Runs a cluster on the nodes of a Slurm cluster.

    python -m launch.slurm --num_ps=2 --num_workers=4 --time=60 train.py --epochs=5

Submits one batch job and shows its output; --dry_run prints its script. Within an
allocation, as of salloc, the same command uses its nodes. The ps run on different nodes
where there are enough. Every node needs the script, the data, the log directory and the
same Python environment at the same paths. The job ends, and lost tasks are restarted, as
with launch.local. If Slurm takes the nodes (preemption, the end of --time), the job goes
back into its queue. Flags after the script belong to the script.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from launch.engines import record, slurm, slurm_allocation, slurm_script
from launch.engines.hosts import Host
from launch.engines.layout import Layout, Surroundings, assign, record_of
from launch.engines.record import Record
from launch.engines.slurm_allocation import JOB_ID, SlurmNode
from launch.engines.slurm_script import JOB_VARIABLE, Batch
from launch.flags import command_line, config_file, engine_flags
from launch.flags.errors import UsageError
from launch.flags.values import Flags
from launch.job.job import Job
from launch.job.plan import Program, tasks_of
from launch.job.script_source import kind_of_script
from launch.supervise.processes import check_platform

_FORMS = {
    "time": (
        r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE",
        "minutes, hours:minutes:seconds or days-hours:minutes:seconds",
    ),
    "mem": (r"\d+[KMGT]?", "a number with K, M, G or T, such as 16G"),
}
_OPTIONS = ("partition", "time", "account", "qos", "constraint", "mem")
_TEARDOWN = 30  # seconds that ending the job takes beyond its grace period
_MOST_TASKS = 100_000
_LONGEST_WARNING = 65_535  # seconds; sbatch refuses more.


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns the job's exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    check_platform()
    _check(values)
    kind = kind_of_script(program, values.program, values.num_ps)
    counts = engine_flags.counts(values, kind, _MOST_TASKS)
    if os.environ.get(JOB_ID) and not values.dry_run:
        return _run_here(values, program, kind, counts)
    name = record.name_of(values.name, program.script)
    batch = _batch(values, program, name, counts)
    if values.dry_run:
        print(slurm.render(batch), end="")
        return 0
    command_line.check_script(program)
    slurm.render(batch)
    kept = Record(
        name,
        "slurm",
        os.path.dirname(batch.output),
        grace_period=values.grace_period,
        output=batch.output,
    )
    return engine_flags.start(values, slurm, batch, kept)


def _batch(values: Flags, program: Program, name: str, counts: dict[str, int]) -> Batch:
    log_dir = os.path.abspath(values.log_dir or os.path.join("logs", name))
    ours = [f"--name={name}", f"--log_dir={log_dir}"]
    own = config_file.arguments_of(values, without=["detach"])
    asked = {each: values[each].value for each in _OPTIONS if values[each].value}
    if values.cpus_per_task is not None:
        asked["cpus-per-task"] = values.cpus_per_task
    return Batch(
        name=name,
        parts=slurm_script.parts(
            counts, values.nodes, values.gpus_per_worker, values.min_workers
        ),
        # The user's flags come later, and win; so a default may be given before.
        command=[
            *(sys.executable, "-m", "launch.slurm", *ours, *own),
            *(program.script, *program.flags),
        ],
        cwd=os.getcwd(),
        output=os.path.join(log_dir, slurm.OUTPUT),
        warning=round(values.grace_period) + _TEARDOWN,
        options=asked,
        extra=values.sbatch,
        may_lose_nodes=values.min_workers is not None,
    )


def _run_here(
    values: Flags, program: Program, kind: str, counts: dict[str, int]
) -> int:
    """Runs the job on the nodes of the allocation that this process is in."""
    job_id = os.environ[JOB_ID]
    is_batch = JOB_VARIABLE in os.environ
    if values.detach and not is_batch:
        raise UsageError(
            f"--detach submits a job, and this is within job {job_id} of Slurm: omit it"
        )
    parts = slurm_allocation.parts(os.environ)
    nodes = [node for part in parts for node in part]
    if values.min_workers is not None:
        counts = slurm_allocation.with_room(counts, values.min_workers, os.environ)
        if (granted := counts["worker"]) < values.num_workers:
            slurm.tell(
                f"asked for {values.num_workers} workers; the allocation has room for "
                f"{granted}, and a job of Slurm does not grow: starting with these "
                f"(--min_workers={values.min_workers})"
            )
    layout = _layout(parts, counts)
    planner = engine_flags.planner(values, program, kind)
    there = Surroundings(
        python=sys.executable,
        cwd=os.getcwd(),
        env={},
        connect=[node.connect() for node in nodes],
    )
    planner.example(layout, there)  # A program that does not fit is refused at once.
    if not is_batch:
        slurm.tell(
            f"using the nodes of job {job_id} as they are; launch.jobs does not know this "
            "job: the end of this command, or scancel, ends it"
        )

    def prepare() -> tuple[Job, Record]:
        job = planner.on_hosts(layout, there)
        if values.gpus_per_worker:
            job = _with_gpus(job, nodes, layout, values.gpus_per_worker)
        name = os.environ.get(JOB_VARIABLE) or f"slurm-{job_id}"
        return job, replace(record_of(job, name, "slurm"), job_id=job_id)

    return slurm.run_in_allocation(job_id, nodes[0], prepare)


def _layout(parts: Sequence[Sequence[SlurmNode]], counts: dict[str, int]) -> Layout:
    """Lays the workers out on the first part, and everything else on the others."""
    nodes = [node for part in parts for node in part]
    tasks = tasks_of(counts)
    if len(parts) == 1:
        where = assign(tasks, [0.0] * len(nodes))
    else:
        first = len(parts[0])
        workers = [each for each in tasks if each.job == "worker"]
        others = [each for each in tasks if each.job != "worker"]
        where = assign(workers, [0.0] * first)
        placed = assign(others, [0.0] * (len(nodes) - first))
        where |= {task: first + host for task, host in placed.items()}
    names = [node.name for node in nodes]
    return Layout([Host(name) for name in names], names, where)


def _with_gpus(job: Job, nodes: Sequence[SlurmNode], layout: Layout, gpus: int) -> Job:
    """Shows each worker its own among the GPUs of its node."""
    seen: Counter[int] = Counter()
    plans = []
    for plan in job.plans:
        if plan.task.job == "worker" and plan.remote:
            host = layout.where[plan.task]
            mine = range(seen[host] * gpus, (seen[host] + 1) * gpus)
            seen[host] += 1
            remote = replace(plan.remote, connect=nodes[host].connect(mine))
            plan = replace(plan, remote=remote)
        plans.append(plan)
    return replace(job, plans=tuple(plans))


def _check(values: Flags) -> None:
    engine_flags.check(values, ["checkpoint_dir", "log_dir"])
    longest = _LONGEST_WARNING - _TEARDOWN
    if values.grace_period > longest:
        raise UsageError(
            f"--grace_period={values.grace_period:g}: Slurm gives a job at most "
            f"{longest} seconds before its end"
        )
    for name in _OPTIONS:
        value = values[name].value
        if value is not None and not re.fullmatch(r"[\w.,:@%+*&|()\[\]-]+", value):
            raise UsageError(
                f"--{name}={value!r} cannot be asked of Slurm: write it without spaces "
                "and quotes"
            )
    for name, (form, words) in _FORMS.items():
        value = values[name].value
        if value is not None and not re.fullmatch(form, value):
            raise UsageError(f"--{name}={value!r}: write {words}")


def _define_flags() -> Flags:
    values = Flags()
    values.text(
        "partition", None, "The partition of Slurm; its default one if omitted."
    )
    values.text(
        "time", None, "The time limit, as Slurm writes it: minutes, or hours:minutes:0."
    )
    values.text("account", None, "The account that is charged.")
    values.text("qos", None, "The quality of service.")
    values.text("constraint", None, "Features that every node must have.")
    values.text("mem", None, "The memory that the job needs of each node, such as 16G.")
    values.integer(
        "nodes",
        None,
        "How many nodes to ask for. By default as many as there are workers, or ps "
        "if these are more. With --gpus_per_worker, the nodes of the workers; ps "
        "and chief have others.",
        lower_bound=1,
    )
    values.integer(
        "cpus_per_task", None, "How many CPUs to ask for each task.", lower_bound=1
    )
    values.integer(
        "gpus_per_worker", 0, "How many GPUs to ask for each worker.", lower_bound=0
    )
    values.repeated(
        "sbatch",
        [],
        "One more option of sbatch: --sbatch=--exclusive. Repeat the flag for more.",
    )
    engine_flags.define(values, 60.0, "every node must answer")
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.slurm")
