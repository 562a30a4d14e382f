"""Which GPUs of this machine each task sees."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.plan import PlanError, TaskPlan

VISIBLE = "CUDA_VISIBLE_DEVICES"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

_DRIVER = Path("/proc/driver/nvidia/gpus")


def available(
    environ: Mapping[str, str] = os.environ, driver: Path = _DRIVER
) -> tuple[str, ...]:
    """Returns the GPUs that may be used, as `CUDA_VISIBLE_DEVICES` names them.

    Args:
        environ: If CUDA_VISIBLE_DEVICES is set there, it is what it says.
        driver: Where NVIDIA's driver has a folder for each GPU.
    """
    visible = environ.get(VISIBLE)
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA itself reads the list up to the first number that is none.
        end = next((i for i, name in enumerate(names) if name in ("", "-1")), None)
        return tuple(names[:end])
    count = len(list(driver.iterdir())) if driver.is_dir() else 0
    return tuple(map(str, range(count)))


def assign(
    plans: Sequence[TaskPlan], per_worker: int, gpus: Sequence[str]
) -> tuple[TaskPlan, ...]:
    """Gives each task that trains GPUs of its own, and every other task none.

    TensorFlow takes all memory of the GPUs that it sees; these tasks are told to take
    what they need. It reduces over several GPUs of a task by NCCL.

    Args:
        plans: All tasks of a job on this machine.
        per_worker: The GPUs of each worker, and of a chief that trains as one.
        gpus: Those that there are.

    Raises:
        PlanError: If there are not as many.
    """
    trains = [_trains(plan, plans) for plan in plans]
    needed = per_worker * sum(trains)
    if needed > len(gpus):
        raise PlanError(
            f"{sum(trains)} tasks with {per_worker} GPUs each need {needed}, and this "
            f"machine shows {len(gpus)}: start fewer workers, or give each fewer GPUs"
        )
    free = iter(gpus)
    return tuple(
        showing(plan, [next(free) for _ in range(per_worker if does_train else 0)])
        for plan, does_train in zip(plans, trains, strict=True)
    )


def showing(plan: TaskPlan, gpus: Sequence[str]) -> TaskPlan:
    """Shows these GPUs to a task, and no others."""
    env = {**plan.env, VISIBLE: ",".join(gpus) or "-1"}
    if gpus:
        env[GROWTH] = "true"
    return dataclasses.replace(plan, env=env)


def _trains(plan: TaskPlan, plans: Sequence[TaskPlan]) -> bool:
    if plan.task.job == "chief":
        return not any(each.is_server for each in plans)
    return plan.task.job == "worker"
