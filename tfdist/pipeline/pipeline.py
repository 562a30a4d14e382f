"""A model cut into stages: which of its layers are where, and what crosses the cuts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfdist import _tf
from tfdist.model_parallel.plan import LayerPlan
from tfdist.pipeline.arguments import Stages
from tfdist.pipeline.assign import assign, check_shared
from tfdist.pipeline.parts import with_parts
from tfdist.splitting.nodes import with_pieces


@dataclass(frozen=True)
class Stage:
    """Some layers of a model, on one device.

    Attributes:
        device: The full name of the device.
        nodes: The calls of layers, in the order in which they are computed.
        takes: The symbolic tensors, by identity, that come from the batch or from earlier
            stages.
        gives: Those that later stages or the loss take.
    """

    device: str
    nodes: tuple[Any, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]

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

    Args:
        functional: The functional model.
        stages: "auto", a number of stages, the layers of each, or a plan.
        devices: The device of each stage.
        available: All devices, on which the parts of split layers are.

    Raises:
        PipelineError: If the model cannot be cut so.
    """

    def __init__(
        self,
        functional: Any,
        stages: Stages,
        devices: Sequence[str],
        available: Sequence[str],
    ) -> None:
        # Kept, so that the identities of its tensors stay theirs.
        self.functional = functional
        self.inputs = [id(each) for each in functional.inputs]
        self.outputs = [id(each) for each in functional.outputs]
        whole = list(_tf.nodes_of(functional))
        nodes = with_pieces(whole, functional.outputs)
        if isinstance(stages, LayerPlan):
            numbers = assign(functional, nodes, stages, len(devices))
            self.layer_names = _names(nodes, numbers)
        else:
            numbers = assign(functional, whole, stages, len(devices))
            self.layer_names = _names(whole, numbers)
            if len(nodes) > len(whole):
                of_layers = {
                    id(node.operation): number
                    for node, number in zip(whole, numbers, strict=True)
                }
                numbers, devices = with_parts(nodes, of_layers, devices, available)
                check_shared(nodes, numbers)
        self.stages = tuple(
            self._stage(number, nodes, numbers, device)
            for number, device in enumerate(devices)
        )

    def _stage(
        self, number: int, nodes: list[Any], numbers: list[int], device: str
    ) -> Stage:
        here = [n for n, at in zip(nodes, numbers, strict=True) if at == number]
        elsewhere = [n for n, at in zip(nodes, numbers, strict=True) if at != number]
        made = {id(each): None for node in here for each in node.outputs}
        used = {id(each): None for node in here for each in node.input_tensors}
        wanted = {id(each) for node in elsewhere for each in node.input_tensors}
        wanted.update(self.outputs)
        return Stage(
            device,
            tuple(here),
            tuple(each for each in used if each not in made),
            tuple(each for each in made if each in wanted),
        )

    @property
    def parts(self) -> dict[str, list[str]]:
        """The devices of the parts of each layer that is split, by its name."""
        devices: dict[str, dict[int, str]] = {}
        for stage in self.stages:
            for node in stage.nodes:
                if (part := getattr(node, "part", None)) is not None:
                    devices.setdefault(node.layer.name, {})[part] = stage.device
        return {
            name: [device for _, device in sorted(found.items())]
            for name, found in devices.items()
        }

    @property
    def placed(self) -> list[tuple[keras.Variable, str]]:
        """Each variable of the layers, and its device."""
        return [(v, stage.device) for stage in self.stages for v in stage.variables]


def _names(nodes: Sequence[Any], numbers: Sequence[int]) -> list[list[str]]:
    """Returns the names of the layers of each stage."""
    found: list[dict[str, None]] = [{} for _ in range(max(numbers) + 1)]
    for node, number in zip(nodes, numbers, strict=True):
        if isinstance(node.operation, keras.Layer):
            found[number][node.operation.name] = None
    return [list(names) for names in found]


def _each_once(variables: Any) -> list[keras.Variable]:
    return list({id(each): each for each in variables}.values())
