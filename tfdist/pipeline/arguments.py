"""The arguments of `PipelineStrategy`, checked."""

from collections.abc import Sequence
from typing import Any

from tfdist.model_parallel.plan import LayerPlan
from tfdist.model_parallel.schedule import SCHEDULES
from tfdist.pipeline.errors import PipelineError
from tfdist.pipeline.planned import stages_of

AUTO = "auto"


Stages = int | str | list[list[str]] | LayerPlan


def checked_stages(stages: Any) -> Stages:
    """Returns "auto", a number, a list of lists of names, or a plan."""
    if stages == AUTO:
        return AUTO
    if isinstance(stages, int) and not isinstance(stages, bool) and stages >= 1:
        return stages
    if isinstance(stages, LayerPlan):
        return stages
    is_lists = isinstance(stages, Sequence) and not isinstance(stages, str) and stages
    if not is_lists or any(
        isinstance(each, str) or not isinstance(each, Sequence) for each in stages
    ):
        raise PipelineError(
            f"stages must be {AUTO!r}, a number of stages of at least 1, a list with a list "
            "of layer names for each stage, or a plan of tfdist.place_layers; received "
            f"{stages!r}"
        )
    lists = [[getattr(each, "name", each) for each in stage] for stage in stages]
    if [] in lists:
        raise PipelineError(
            f"stage {lists.index([])} of {len(lists)} has no layer. Give it one, or leave "
            "the stage out"
        )
    names = [name for stage in lists for name in stage]
    for name in names:
        if not isinstance(name, str):
            raise PipelineError(f"stages names layers; received {name!r} among them")
        if names.count(name) > 1:
            raise PipelineError(
                f"stages has the layer {name!r} twice. A layer is in one stage, also one "
                "that is called several times"
            )
    return lists


def checked_microbatches(microbatches: Any) -> int:
    """Returns the number of microbatches."""
    if isinstance(microbatches, bool) or not isinstance(microbatches, int):
        raise PipelineError(f"microbatches must be an int; received {microbatches!r}")
    if microbatches < 1:
        raise PipelineError(
            f"microbatches must be at least 1; received {microbatches}. With 1 the stages "
            "compute one after the other; take 4 times as many as stages or more"
        )
    return microbatches


def checked_recompute(recompute: Any) -> bool:
    """Returns whether activations are computed again."""
    if not isinstance(recompute, bool):
        raise PipelineError(f"recompute must be True or False; received {recompute!r}")
    return recompute


def checked_replicas(replicas: Any, max_staleness: int) -> int:
    """Returns the number of replicas; several need stages that wait."""
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise PipelineError(
            f"replicas must be an int of at least 1, how many pipelines share each batch; "
            f"received {replicas!r}"
        )
    if replicas > 1 and max_staleness:
        raise PipelineError(
            f"replicas={replicas} needs max_staleness=0, for the gradients of all replicas "
            f"are added up in each step; received max_staleness={max_staleness}. Use more "
            "stages, or wait for results of the same step"
        )
    return replicas


def checked_staleness(max_staleness: Any) -> int:
    """Returns how many steps old a result of another stage may be."""
    is_int = isinstance(max_staleness, int) and not isinstance(max_staleness, bool)
    if not is_int or max_staleness < 0:
        raise PipelineError(
            "max_staleness is a number of steps: 0 to wait for the results of the same "
            "step, 1 not to wait for another stage, 2 not to wait for a message either; "
            f"received {max_staleness!r}"
        )
    return int(max_staleness)


def checked_schedule(schedule: Any) -> str:
    """Returns the name of a schedule."""
    if schedule not in SCHEDULES:
        raise PipelineError(
            f"schedule must be one of {', '.join(map(repr, SCHEDULES))}; received "
            f"{schedule!r}"
        )
    return str(schedule)


def replicas_of(available: Sequence[str], replicas: int) -> list[tuple[str, ...]]:
    """Returns the devices of each replica: equally many, in their order.

    >>> replicas_of(["a", "b", "c", "d", "e"], 2)
    [('a', 'b'), ('c', 'd')]
    """
    size = len(available) // replicas
    if not size:
        raise PipelineError(
            f"replicas={replicas} needs as many devices, and there are {len(available)}: "
            f"{', '.join(available)}. Start more workers (--num_workers={replicas}), pass "
            "more devices, or ask for fewer replicas"
        )
    return [tuple(available[at * size :][:size]) for at in range(replicas)]


def devices_of(
    stages: Stages, replicas: Sequence[Sequence[str]]
) -> list[tuple[str, ...]]:
    """Returns, of each stage, the device in each replica.

    >>> devices_of("auto", [("a", "b"), ("c", "d")])
    [('a', 'c'), ('b', 'd')]
    """
    available, count = replicas[0], len(replicas)
    if isinstance(stages, str):
        numbers = list(range(len(available)))
    elif isinstance(stages, LayerPlan):
        numbers = [each.device for each in stages_of(stages)]
    else:
        numbers = list(range(stages if isinstance(stages, int) else len(stages)))
    needed = max(numbers) + 1
    if needed > len(available):
        each = f" in each of {count} replicas" if count > 1 else ""
        raise PipelineError(
            f"{needed} stages need as many devices{each}; there are {len(available)}{each}: "
            f"{', '.join(available)}. Start more workers (--num_workers={needed * count}), "
            "pass more devices, or ask for fewer stages or replicas"
        )
    return [tuple(each[at] for each in replicas) for at in numbers]
