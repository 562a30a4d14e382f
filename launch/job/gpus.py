"""Shares of this machine's GPUs among its tasks."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.job.plan import PlanError, TaskPlan

VISIBLE = "CUDA_VISIBLE_DEVICES"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

_DRIVER = Path("/proc/driver/nvidia/gpus")


def available(
    environ: Mapping[str, str] = os.environ, driver: Path = _DRIVER
) -> tuple[str, ...]:
    """Returns the usable GPUs, by their names in `CUDA_VISIBLE_DEVICES`.

    If the environment does not set that, they are those that NVIDIA's driver lists.
    """
    visible = environ.get(VISIBLE)
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA reads the list up to the first invalid entry.
        end = next((i for i, name in enumerate(names) if name in ("", "-1")), None)
        return tuple(names[:end])
    count = len(list(driver.iterdir())) if driver.is_dir() else 0
    return tuple(map(str, range(count)))


def assign(
    plans: Sequence[TaskPlan], per_worker: int, gpus: Sequence[str]
) -> tuple[TaskPlan, ...]:
    """Gives each task that trains its own GPUs, and every other task none.

    By default TensorFlow takes all memory of the GPUs it sees; these tasks are told to
    take only what they need. It reduces over several GPUs in one task with NCCL.

    Raises:
        PlanError: If there are too few GPUs.
    """
    trains = [_trains(plan, plans) for plan in plans]
    needed = per_worker * sum(trains)
    if needed > len(gpus):
        advice = "start fewer workers, or give each fewer GPUs"
        if not gpus:
            advice = "omit --gpus_per_worker, or see why nvidia-smi finds none"
        raise PlanError(
            f"--gpus_per_worker={per_worker} of {sum(trains)} tasks needs {needed} GPUs; "
            f"this machine has {len(gpus)}: {advice}"
        )
    free = iter(gpus)
    return tuple(
        showing(plan, [next(free) for _ in range(per_worker if does_train else 0)])
        for plan, does_train in zip(plans, trains, strict=True)
    )


def showing(plan: TaskPlan, gpus: Sequence[str]) -> TaskPlan:
    """Shows only these GPUs to a task."""
    grows = {GROWTH: "true"} if gpus else {}
    return plan.telling({VISIBLE: ",".join(gpus) or "-1", **grows})


def _trains(plan: TaskPlan, plans: Sequence[TaskPlan]) -> bool:
    if plan.task.job == "chief":
        # A chief with servers only coordinates; the workers compute its steps.
        return not any(each.is_server for each in plans)
    return plan.task.job == "worker"
