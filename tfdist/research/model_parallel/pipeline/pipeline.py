"""A model cut into stages: the place of its layers, and the tensors across cuts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.research.model_parallel.pipeline.arguments import Stages
from tfdist.research.model_parallel.pipeline.assign import assign, check_shared
from tfdist.research.model_parallel.pipeline.errors import PipelineError
from tfdist.research.model_parallel.pipeline.step_time import Execution
from tfdist.research.model_parallel.plan import LayerPlan
from tfdist.research.model_parallel.splitting.nodes import (
    CallNode,
    PieceNode,
    with_pieces,
)


@dataclass(frozen=True)
class Stage:
    """Some layers of a model, on one device or with replicas on several.

    Attributes:
        devices: The full names of the devices of its replicas.
        nodes: The calls of layers, in the order in which they are computed.
        takes: The symbolic tensors, by identity, that come from the batch or from earlier
            stages.
        gives: The tensors that later stages or the loss take.
    """

    devices: tuple[str, ...]
    nodes: tuple[CallNode, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]

    @property
    def device(self) -> str:
        """The device of the first replica."""
        return self.devices[0]

    @property
    def operations(self) -> list[Any]:
        """The layers, and operations that are none, each once."""
        return list(
            {id(each.operation): each.operation for each in self.nodes}.values()
        )

    @property
    def weights(self) -> list[keras.Variable]:
        """The variables that are trained."""
        return _each_once(
            v for op in self.operations for v in getattr(op, "trainable_variables", ())
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables of the layers."""
        return _each_once(
            v for op in self.operations for v in getattr(op, "variables", ())
        )


class Pipeline:
    """A functional model in stages.

    `devices` are those of the stages in the first replica; `replicas` has all devices of
    each: its stages are on some of them, and so are the parts of split layers.
    """

    def __init__(
        self,
        functional: keras.Model,
        stages: Stages,
        devices: Sequence[str],
        replicas: Sequence[Sequence[str]],
        execution: Execution,
    ) -> None:
        # Kept, so that the identities of its tensors stay theirs.
        self.functional = functional
        self.inputs = [id(each) for each in functional.inputs]
        self.outputs = [id(each) for each in functional.outputs]
        whole = list(_tf.nodes_of(functional))
        nodes = with_pieces(whole, functional.outputs)
        if isinstance(stages, LayerPlan):
            numbers = assign(functional, nodes, stages, devices, execution)
            self.layer_names = _names(nodes, numbers)
        else:
            numbers = assign(functional, whole, stages, devices, execution)
            self.layer_names = _names(whole, numbers)
            if len(nodes) > len(whole):
                of_layers = {
                    id(node.operation): number
                    for node, number in zip(whole, numbers, strict=True)
                }
                numbers, devices = _with_parts(nodes, of_layers, devices, replicas[0])
                check_shared(nodes, numbers)
        self.stages = tuple(
            self._stage(number, nodes, numbers, _alike(device, replicas))
            for number, device in enumerate(devices)
        )

    def _stage(
        self,
        number: int,
        nodes: list[CallNode],
        numbers: list[int],
        devices: tuple[str, ...],
    ) -> Stage:
        here = [n for n, at in zip(nodes, numbers, strict=True) if at == number]
        elsewhere = [n for n, at in zip(nodes, numbers, strict=True) if at != number]
        made = {id(each): None for node in here for each in node.outputs}
        used = {id(each): None for node in here for each in node.input_tensors}
        wanted = {id(each) for node in elsewhere for each in node.input_tensors}
        # The loss takes the model's outputs, whichever stage computes them.
        wanted.update(self.outputs)
        return Stage(
            devices,
            tuple(here),
            tuple(each for each in used if each not in made),
            tuple(each for each in made if each in wanted),
        )

    def in_structure(self, outputs: list[Nest]) -> Any:
        """Returns the model's output, from the tensors of its graph."""
        packed = keras.tree.pack_sequence_as(self.functional.output, outputs)
        is_single = isinstance(packed, list | tuple) and len(packed) == 1
        return packed[0] if is_single else packed

    @property
    def parts(self) -> dict[str, list[str]]:
        """The devices of the parts of each layer that is split, by its name."""
        devices: dict[str, dict[int, str]] = {}
        for stage in self.stages:
            for node in stage.nodes:
                if isinstance(node, PieceNode) and node.part is not None:
                    devices.setdefault(node.layer.name, {})[node.part] = stage.device
        return {
            name: [device for _, device in sorted(found.items())]
            for name, found in devices.items()
        }

    @property
    def placed(self) -> list[tuple[keras.Variable, str]]:
        """Each variable of the layers, and its device."""
        return [each for stage in self.stages for each in _spread(stage)]


def _with_parts(
    nodes: Sequence[CallNode],
    numbers: Mapping[int, int],
    devices: Sequence[str],
    available: Sequence[str],
) -> tuple[list[int], list[str]]:
    """Returns the stage of each call, and the device of each stage.

    A stage with a split layer becomes several: what comes before the layer, the parts on
    each device, and what comes after. Part 0 is on the device of the stage, the others on
    those that follow, in turn. Parts wait for each other nowhere, so that they compute at
    the same time. `numbers` has the stage of each layer or operation, by identity.
    """
    # A key that sorts as data flows: a stage, the number of changes between parts and
    # the rest that came before in it, and a device.
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
            # Cut where the tensor is, so that no more than its part is sent.
            key = sources[0]
        else:
            is_part = part is not None
            levels = [at for its, at, _ in sources if its == stage]
            level = max(levels, default=0)
            # Odd levels are those of parts, even ones those of all else.
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


def _alike(device: str, replicas: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Returns the devices that are to other replicas what this is to the first."""
    at = list(replicas[0]).index(device)
    return tuple(each[at] for each in replicas)


def _spread(stage: Stage) -> list[tuple[keras.Variable, str]]:
    """Spreads the variables of a stage over its replicas, so that each has as many bytes."""
    bytes_on = dict.fromkeys(stage.devices, 0)
    placed = []
    for variable in sorted(stage.variables, key=_bytes, reverse=True):
        device = min(bytes_on, key=bytes_on.__getitem__)
        bytes_on[device] += _bytes(variable)
        placed.append((variable, device))
    return placed


def _bytes(variable: keras.Variable) -> int:
    value = _tf.value_of(variable)
    return int(value.shape.num_elements() * value.dtype.size)


def _names(nodes: Sequence[CallNode], numbers: Sequence[int]) -> list[list[str]]:
    """Returns the names of the layers of each stage."""
    found: list[dict[str, None]] = [{} for _ in range(max(numbers) + 1)]
    for node, number in zip(nodes, numbers, strict=True):
        if isinstance(node.operation, keras.Layer):
            found[number][node.operation.name] = None
    return [list(names) for names in found]


def _each_once(variables: Any) -> list[keras.Variable]:
    return list({id(each): each for each in variables}.values())
