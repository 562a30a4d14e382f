"""The stages that a plan of `place_layers` says."""

from typing import NamedTuple

from tfdist.model_parallel.plan import LayerPlan
from tfdist.pipeline.errors import PipelineError


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
        # Inputs are nowhere: whoever needs one has it.
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
