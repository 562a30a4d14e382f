"""Assignment of the calls of layers to stages."""

from collections.abc import Iterable, Sequence

import keras

from tfdist.research.model_parallel.devices import Device
from tfdist.research.model_parallel.pipeline.arguments import Stages, stages_of
from tfdist.research.model_parallel.pipeline.cut import choose_cut
from tfdist.research.model_parallel.pipeline.errors import PipelineError
from tfdist.research.model_parallel.pipeline.nominal import (
    graph_of_calls,
    links_of,
    speed_of,
)
from tfdist.research.model_parallel.pipeline.step_time import Execution
from tfdist.research.model_parallel.plan import LayerPlan
from tfdist.research.model_parallel.splitting.nodes import CallNode, PieceNode


def assign(
    functional: keras.Model,
    nodes: Sequence[CallNode],
    stages: Stages,
    devices: Sequence[str],
    execution: Execution,
) -> list[int]:
    """Returns the stage of each call; calls come after those whose results they take."""
    if isinstance(stages, str | int):
        return _cut(functional, nodes, devices, execution)
    if isinstance(stages, LayerPlan):
        listed = _as_planned(functional, nodes, stages)
    else:
        listed = {name: number for number, each in enumerate(stages) for name in each}
        _check_names(functional, listed)
    numbers = _as_listed(nodes, listed)
    check_shared(nodes, numbers)
    for number in range(len(devices)):
        if number not in numbers:
            raise PipelineError(
                f"stage {number} of {len(devices)} computes nothing: what it names are inputs. "
                "Give it a layer, or leave the stage out"
            )
    return numbers


def _cut(
    functional: keras.Model,
    nodes: Sequence[CallNode],
    devices: Sequence[str],
    execution: Execution,
) -> list[int]:
    """Returns consecutive stages, by a simulation of estimated costs."""
    uses: dict[int, list[int]] = {}
    for at, node in enumerate(nodes):
        # Calls of a layer, and layers that share a variable, are in one stage.
        for each in (node.operation, *getattr(node.operation, "variables", ())):
            uses.setdefault(id(each), []).append(at)
    stages = choose_cut(
        graph_of_calls(functional, nodes, speed_of(devices)),
        [Device(each) for each in devices],
        links_of(devices),
        execution,
        uses.values(),
    )
    # Without the node that takes the outputs, which is no call.
    return stages[: len(nodes)]


def _as_planned(
    functional: keras.Model, nodes: Sequence[CallNode], plan: LayerPlan
) -> dict[str, int]:
    stages = stages_of(plan)
    listed = {
        name: number for number, each in enumerate(stages) for name in each.layers
    }
    # Cuts and joins of a split layer that a plan lacks are where their tensors are.
    needed = {
        each.operation.name: getattr(each, "layer", None)
        for each in nodes
        if isinstance(each.operation, keras.Layer)
        and getattr(each, "part", 0) is not None
    }
    missing = [each for each in needed if each not in listed]
    if any(each in plan.split for each in missing) or any(map(needed.get, missing)):
        pieces = [each for each in nodes if isinstance(each, PieceNode)]
        split = [each.layer.name for each in pieces if each.part == 0]
        raise PipelineError(
            f"the plan splits {_names(plan.split)}, and the model {functional.name!r} is "
            f"one in which {_names(split)} is split. Train the model "
            "tfdist.research.split_layers(model, plan), made of the one that was planned"
        )
    if missing:
        raise PipelineError(
            f"the plan lacks the layers {', '.join(missing)} of the model "
            f"{functional.name!r}: it is that of another model. Plan this one by "
            "tfdist.research.place_layers; the names of layers count"
        )
    return _renamed(listed, nodes)


def _renamed(listed: dict[str, int], nodes: Sequence[CallNode]) -> dict[str, int]:
    """Returns the stages of a plan by the names of this model's operations.

    Keras counts the names of operations such as `x + y` within a process, so another
    model of the same code has other names. Operations of a kind keep their order.
    """
    operations = {each.operation.name: each.operation for each in nodes}
    layers = [n for n, each in operations.items() if isinstance(each, keras.Layer)]
    planned = _by_kind([each for each in listed if each not in layers])
    found = {name: listed[name] for name in layers if name in listed}
    for kind, names in _by_kind([n for n in operations if n not in layers]).items():
        if len(names) == len(same := planned.get(kind, [])):
            found |= dict(zip(names, map(listed.__getitem__, same), strict=True))
    return found


def _by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns names such as `add`, `add_1` by what is before the count, in its order."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        kind, _, number = name.rpartition("_")
        if not number.isdecimal():
            kind, number = name, "0"
        found.setdefault(kind, []).append((int(number), name))
    return {kind: [name for _, name in sorted(each)] for kind, each in found.items()}


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "no layer"


def _as_listed(nodes: Sequence[CallNode], listed: dict[str, int]) -> list[int]:
    made: dict[int, tuple[int, str]] = {}
    numbers = []
    for node in nodes:
        name = node.operation.name
        sources = [made[id(each)] for each in node.input_tensors if id(each) in made]
        latest, source = max(sources, default=(0, ""))
        # Operations such as `x + y` have no name of the user's.
        number = listed.get(name, latest)
        if number < latest:
            raise PipelineError(_backward(nodes, node, number, source, latest))
        numbers.append(number)
        made |= {id(each): (number, name) for each in node.outputs}
    return numbers


def _backward(
    nodes: Sequence[CallNode], node: CallNode, number: int, source: str, latest: int
) -> str:
    name = node.operation.name
    is_shared = sum(each.operation is node.operation for each in nodes) > 1
    what = "is called several times (a shared layer), and " if is_shared else ""
    way_out = (
        "Put all calls of a shared layer, and what is between them, into one stage"
        if is_shared
        else f"Put {name!r} into stage {latest} or a later one, or {source!r} into an "
        "earlier one"
    )
    return (
        f"the layer {name!r} of stage {number} {what}takes what {source!r} of stage "
        f"{latest} computes, but data goes from each stage to later ones. {way_out}"
    )


def _check_names(functional: keras.Model, listed: dict[str, int]) -> None:
    names = [each.name for each in functional.layers if not _is_input(each)]
    known = {each.name for each in functional.operations}
    unknown = [each for each in listed if each not in known]
    if unknown:
        raise PipelineError(
            f"stages names {', '.join(map(repr, unknown))}, and the model "
            f"{functional.name!r} has no such layer. Its layers are {', '.join(names)}; a "
            "model within the model counts as one"
        )
    missing = [each for each in names if each not in listed]
    if missing:
        raise PipelineError(
            f"stages lacks the layers {', '.join(missing)}. Each layer of the model is in "
            'one stage: add them, or pass a number of stages, or "auto"'
        )


def _is_input(layer: keras.Layer) -> bool:
    return isinstance(layer, keras.layers.InputLayer)


def check_shared(nodes: Sequence[CallNode], numbers: list[int]) -> None:
    """Checks that layers of different stages have no variable in common."""
    owner: dict[int, tuple[int, str]] = {}
    for node, number in zip(nodes, numbers, strict=True):
        for variable in getattr(node.operation, "variables", ()):
            name = node.operation.name
            first, other = owner.setdefault(id(variable), (number, name))
            if first != number:
                raise PipelineError(
                    f"the layers {other!r} of stage {first} and {name!r} of stage "
                    f"{number} share the variable {variable.path}, which is on one device. "
                    "Put both into one stage"
                )
