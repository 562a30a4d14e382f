"""Runs a cluster on the nodes of a Ray cluster.

    python -m launch.ray --address=auto --num_ps=2 --num_workers=4 train.py --epochs=5

Ray reserves what all tasks need, or nothing: each ps a node of its own where there are
enough, the workers as few nodes as possible. The current directory is shipped to the
nodes. They need the same Python environment, and the data. The job ends, and lost tasks
are restarted, as with launch.local. Flags after the script belong to the script.

In Python, `launch.ray.Executor` runs functions on workers, as Horovod's RayExecutor does.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

from launch.engines import ray as engine
from launch.engines import ray_launcher_process, ray_places, ray_request, record
from launch.engines.engine import tell
from launch.engines.layout import Surroundings
from launch.engines.ray import RayJob
from launch.engines.ray_executor import Executor, WorkerError, WorkerLostError
from launch.engines.ray_places import Places
from launch.engines.ray_request import RayRequest
from launch.engines.record import Record
from launch.flags import cluster_flags, command_line, engine_flags
from launch.flags.values import Flags
from launch.job.job import Job
from launch.job.plan import Program, task_name, tasks_of
from launch.job.script_source import kind_of_script
from launch.supervise.processes import check_platform
from tf_config import Task

__all__ = ["Executor", "WorkerError", "WorkerLostError", "main"]

_MOST_TASKS = 10_000


def main(argv: Sequence[str]) -> int:
    """Runs the command, and returns the job's exit status.

    Raises what `launch.flags.command_line.run` tells the user.
    """
    values, program = command_line.parse(argv, _define_flags(), __doc__ or "")
    check_platform()
    engine_flags.check(values, ["checkpoint_dir", "log_dir", "address", "python"])
    cluster_flags.check_seconds("timeout", values.timeout)
    engine_flags.check_work_dir(values.work_dir)
    name = record.name_of(values.name, program.script)
    kind = kind_of_script(program, values.program, values.num_ps)
    if values.work_dir is None:
        program = ray_request.as_shipped(program)
    job = _job(values, name, program, kind)
    if values.dry_run:
        print(engine.render(job))
        return 0
    if values.work_dir is None:
        command_line.check_script(program)
    ray_launcher_process.check_installed()
    log_dir = os.path.abspath(job.example.log_dir)
    kept = Record(name, "ray", log_dir, grace_period=values.grace_period)
    return engine_flags.start(values, engine, job, kept)


def _job(values: Flags, name: str, program: Program, kind: str) -> RayJob:
    tasks = tasks_of(engine_flags.counts(values, kind, _MOST_TASKS))
    log_dir = values.log_dir or os.path.join("logs", name)
    env = engine_flags.env_of(values)
    planner = engine_flags.planner(values, program, kind, first_port=values.first_port)
    planner = replace(planner, options={**planner.options, "log_dir": log_dir})

    def surroundings(tasks: Sequence[Task], places: Places) -> Surroundings:
        return Surroundings(
            python=values.python or ray_places.python(places),
            # The shipped files are in the directory where Ray starts its processes.
            cwd=values.work_dir or ".",
            env=env,
            connect=ray_places.connections(tasks, places),
        )

    def plan_on(places: Places) -> Job:
        present = [task for task in tasks if task_name(task) in places]
        if len(present) < len(tasks):
            tell("ray", _few(values, tasks, present))
        layout = ray_places.layout(present, places)
        job = planner.on_hosts(layout, surroundings(present, places))
        return ray_places.with_actors(job, places)

    places = ray_places.examples(tasks, values.python or "python")
    layout = ray_places.layout(tasks, places)
    engine_flags.check_first_port(layout, planner)
    example = planner.example(layout, surroundings(tasks, places))
    return RayJob(_request(values, tasks, log_dir), example, plan_on)


def _request(values: Flags, tasks: Sequence[Task], log_dir: str) -> RayRequest:
    bundle: dict[str, float] = {"CPU": values.cpus_per_task}
    if values.memory is not None:
        bundle["memory"] = ray_request.memory(values.memory)
    names = [task_name(task) for task in tasks]
    gpus = values.gpus_per_worker
    needed, later = ray_request.without(names, values.min_workers, bundle, gpus)
    return RayRequest(
        address=values.address,
        groups=ray_request.groups(needed, bundle, gpus),
        runtime_env=ray_request.runtime_env(
            values.runtime_env,
            values.work_dir,
            [log_dir, *filter(None, [values.checkpoint_dir])],
        ),
        timeout=values.timeout,
        later=later,
        # Without a checkpoint, it would begin again.
        may_grow=bool(later) and values.checkpoint_dir is not None,
    )


def _few(values: Flags, tasks: Sequence[Task], present: Sequence[Task]) -> str:
    """Returns a notice about the workers that Ray has no room for."""
    left_out = len(tasks) - len(present)
    then = (
        "when there is room for more, the program starts again with them, from its last "
        "checkpoint"
        if values.checkpoint_dir is not None
        else "others can come only with --checkpoint_dir, since the program has to start "
        "again for them"
    )
    return (
        f"asked for {values.num_workers} workers, and Ray has room for "
        f"{values.num_workers - left_out}: starting with these "
        f"(--min_workers={values.min_workers}); {then}"
    )


def _define_flags() -> Flags:
    values = Flags()
    values.text(
        "address",
        "auto",
        "The Ray cluster: host:port, or auto for the one that this machine is in.",
    )
    values.text("memory", None, "The memory to reserve for each task, such as 4G.")
    values.text(
        "runtime_env",
        None,
        "What Ray prepares on the nodes, as a JSON object or the name of a file "
        "with one.",
    )
    values.text(
        "work_dir",
        None,
        "A directory of every node in which the tasks run. By default, the current "
        "directory is shipped.",
    )
    values.text(
        "python", None, "The Python interpreter on every node. By default that of Ray."
    )
    values.integer(
        "cpus_per_task", 1, "How many CPUs to reserve for each task.", lower_bound=1
    )
    values.integer(
        "gpus_per_worker", 0, "How many GPUs to reserve for each worker.", lower_bound=0
    )
    values.number(
        "timeout",
        300.0,
        "Seconds within which Ray must have reserved what all tasks need, or those that "
        "--min_workers leaves.",
    )
    engine_flags.define_env(values)
    engine_flags.define(values, 60.0, "every node must answer")
    engine_flags.define_first_port(values)
    return values


if __name__ == "__main__":
    command_line.run(main, "launch.ray")
