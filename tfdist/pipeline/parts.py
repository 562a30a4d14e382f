"""The stages of a model with split layers: each device's parts are a stage of their own. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.pipeline.errors import PipelineError


def with_parts(
    nodes: Sequence[Any],
    numbers: Mapping[int, int],
    devices: Sequence[str],
    available: Sequence[str],
) -> tuple[list[int], list[str]]:
    """Returns the stage of each call, and the device of each stage.

    A stage with a split layer becomes several: what comes before the layer, the parts on
    each device, and what comes after. Part 0 is on the device of the stage, the others on
    those that follow, in turn. Parts wait for each other nowhere, so that they compute at
    the same time.

    Args:
        nodes: The calls, those of split layers as those of their pieces.
        numbers: The stage of each layer or operation, by identity.
        devices: The device of each of these stages.
        available: All devices.

    Raises:
        PipelineError: If a layer would be in several stages.
    """
    # What sorts as data flows: a stage, how many changes between parts and the rest came
    # before in it, and a device.
    keys: list[tuple[int, int, int]] = []
    made: dict[int, tuple[int, int, int]] = {}
    owner: dict[int, tuple[int, int, int]] = {}
    for node in nodes:
        layer = getattr(node, "layer", node.operation)
        part = getattr(node, "part", None)
        stage = numbers[id(layer)]
        home = available.index(devices[stage])
        sources = [made[id(e)] for e in node.input_tensors if id(e) in made]
        if getattr(node, "is_cut", False) and sources:
            # Where the tensor is, so that no more than its part is sent.
            key = sources[0]
        else:
            is_part = part is not None
            levels = [at for its, at, _ in sources if its == stage]
            level = max(levels, default=0)
            key = (
                stage,
                level + (level % 2 != is_part),
                (home + (part or 0)) % len(available),
            )
        if owner.setdefault(id(node.operation), key) != key:
            raise PipelineError(
                f"the layer {node.operation.name!r} is called several times, before and "
                "after a layer that is split; its weights are on one device, in one stage. "
                "Leave the layer between whole, or the calls on one side of it"
            )
        keys.append(key)
        made |= {id(each): key for each in node.outputs}
    order = {key: at for at, key in enumerate(sorted(set(keys)))}
    return [order[key] for key in keys], [available[device] for _, _, device in order]
