"""Starts the tasks of a cluster.

A plan says what each task runs, as plain data. `launch.local` runs all tasks of a plan on
this machine, and `launch.task` runs one of them on each host of a cluster.
"""

from launch.job.job import Job
from launch.job.plan import PlanError, Program, TaskPlan, plan
from launch.loopback.cluster import (
    LaunchError,
    LogDirError,
    Servers,
    local_cluster,
    make_job,
    run_job,
    servers,
)
from launch.loopback.function import run

__all__ = [
    "Job",
    "LaunchError",
    "LogDirError",
    "PlanError",
    "Program",
    "Servers",
    "TaskPlan",
    "local_cluster",
    "make_job",
    "plan",
    "run",
    "run_job",
    "servers",
]
