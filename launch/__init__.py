"""Start a cluster anywhere: one plan, rendered for this machine or for an engine."""

from launch.job import Job
from launch.loopback import (
    LaunchError,
    LogDirError,
    Servers,
    local_cluster,
    make_job,
    run,
    servers,
)
from launch.plan import PlanError, Program, TaskPlan, plan

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
    "servers",
]
