"""The arguments of `PipelineStrategy`, checked, and the stages and devices that they say."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tfdist.research.model_parallel.pipeline.errors import PipelineError
from tfdist.research.model_parallel.plan import LayerPlan
from tfdist.research.model_parallel.schedule import SCHEDULES

AUTO = "auto"


Stages = int | str | list[list[str]] | LayerPlan


def checked_stages(stages: Any) -> Stages:
    """Returns "auto", a number, a list of lists of names, or a plan."""
    if stages == AUTO:
        return AUTO
    if _is_whole(stages) and stages >= 1:
        return int(stages)
    if isinstance(stages, LayerPlan):
        return stages
    is_lists = isinstance(stages, Sequence) and not isinstance(stages, str) and stages
    if not is_lists or any(
        isinstance(each, str) or not isinstance(each, Sequence) for each in stages
    ):
        raise PipelineError(
            f"stages must be {AUTO!r}, a number of stages of at least 1, a list with a list "
            "of layer names for each stage, or a plan of tfdist.research.place_layers; received "
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
    if not _is_whole(microbatches):
        raise PipelineError(f"microbatches must be an int; received {microbatches!r}")
    if microbatches < 1:
        raise PipelineError(
            f"microbatches must be at least 1; received {microbatches}. With 1 the stages "
            "compute one after the other; take 4 times as many as stages or more"
        )
    return int(microbatches)


def _is_whole(number: Any) -> bool:
    # A bool is an int to Python.
    return isinstance(number, int) and not isinstance(number, bool)


def checked_recompute(recompute: object) -> bool:
    """Returns True if activations are computed again."""
    if not isinstance(recompute, bool):
        raise PipelineError(f"recompute must be True or False; received {recompute!r}")
    return recompute


def check_one_place(devices: Any, cluster_resolver: Any) -> None:
    """Checks that stages are on devices of this process or on a cluster, not on both."""
    if devices is not None and cluster_resolver is not None:
        raise PipelineError(
            "devices are those of this process, and cluster_resolver has workers: pass one "
            f"of them; received devices={devices!r} and cluster_resolver="
            f"{cluster_resolver!r}"
        )


def checked_replicas(replicas: Any, max_staleness: int) -> int:
    """Returns the number of replicas; several need stages that wait."""
    if not _is_whole(replicas) or replicas < 1:
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
    return int(replicas)


def checked_staleness(max_staleness: Any) -> int:
    """Returns how many steps old a result of another stage may be."""
    if not _is_whole(max_staleness) or max_staleness < 0:
        raise PipelineError(
            "max_staleness must be a number of steps: 0 to wait for the results of the same "
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


class PlannedStage(NamedTuple):
    """A stage: the number of its device in the plan, and the names of its layers."""

    device: int
    layers: tuple[str, ...]


def stages_of(plan: LayerPlan) -> list[PlannedStage]:
    """Returns the stages of a plan: data goes from each to later ones only.

    Where a plan goes back to a device, that has several stages.

    Raises:
        PipelineError: If calls of one layer, or parts of a model within the model, would be
            in several stages.
    """
    numbers = {device.name: at for at, device in enumerate(plan.devices)}
    sources: dict[str, list[str]] = {node: [] for node in plan.graph.order}
    for edge in plan.graph.edges:
        sources[edge.target].append(edge.source)
    devices: list[int] = []
    stage_of: dict[str, int] = {}
    for node in plan.graph.order:
        # Inputs have no stage: each stage that needs one has it.
        taken = [_layer_of(each) for each in sources[node]]
        if not taken:
            continue
        earliest = max((stage_of.get(each, 0) for each in taken), default=0)
        layer, device = _layer_of(node), numbers[plan.placed[node]]
        fitting = (at for at in range(earliest, len(devices)) if devices[at] == device)
        stage = next(fitting, len(devices))
        if stage_of.setdefault(layer, stage) != stage:
            _check_again(layer, stage_of[layer], earliest, devices, device)
            continue
        if stage == len(devices):
            devices.append(device)
    return [
        PlannedStage(device, tuple(e for e, at in stage_of.items() if at == stage))
        for stage, device in enumerate(devices)
    ]


def _layer_of(node: str) -> str:
    # "block/dense#2" is the second call of a layer of the model `block`.
    return node.partition("/")[0].partition("#")[0]


def _check_again(
    layer: str, stage: int, earliest: int, devices: list[int], device: int
) -> None:
    """Checks that a layer can be called again in its stage."""
    if devices[stage] != device or stage < earliest:
        raise PipelineError(
            f"the plan has {layer!r} in several stages, but calls of one layer, or the "
            "layers of a model within the model, are in one. Place them and what is "
            "between them on one device (by_hand), or give stages as lists of names"
        )
