"""The graph of layers of a Keras model, with what determines the cost of a call."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.research.model_parallel.graph import (
    LayerEdge,
    LayerGraph,
    LayerNode,
    UnknownGraphError,
)
from tfdist.research.model_parallel.splitting.model import matrix_of
from tfdist.research.model_parallel.splitting.nodes import PieceNode, with_pieces
from tfdist.research.model_parallel.splitting.split import LayerMatrix


@dataclass(frozen=True)
class LayerCall:
    """The output of a layer, and the seconds of its two computations.

    None of the output's tensors is one of its inputs.
    """

    outputs: Nest
    forward: float
    backward: float


CallLayer = Callable[[Any, tuple[Any, ...], dict[str, Any]], LayerCall]
"""Calls an operation with arguments; a layer is one."""


def graph_of(
    model: keras.Model,
    call: CallLayer,
    input_of: Callable[[tuple[int, ...], str], Any],
    batch_size: int,
) -> LayerGraph:
    """Returns the graph of a model whose layers are called one after the other.

    Models within the model count as their layers. `input_of` returns what stands for an
    input of a shape and a dtype. Raises UnknownGraphError if the graph or the inputs'
    shapes are not known.
    """
    inputs, outputs = _ends_of(model)
    walk = _Walk(call, slots_of(model))
    values = []
    for each in inputs:
        shape = (batch_size, *each.shape[1:])
        if None in shape:
            raise UnknownGraphError(
                f"the input {each.name!r} of model {model.name!r} has the shape "
                f"{each.shape}: give it one that is known but for the batch, as in "
                "keras.Input((128,))"
            )
        dtype = keras.backend.standardize_dtype(each.dtype)
        values.append(input_of(shape, dtype))
        walk.calls.add_input(each.name, values[-1])
    walk.run(inputs, outputs, values, "")
    return walk.calls.graph()


def _ends_of(model: keras.Model) -> tuple[list[Any], list[Any]]:
    if not isinstance(model, keras.Model):
        raise TypeError(
            "a model must be a keras.Model, or a tfdist.research.LayerGraph that states its "
            f"layers and their costs; received {model!r}"
        )
    if isinstance(model, keras.Sequential) and not model.built:
        raise UnknownGraphError(
            f"the model {model.name!r} must be built: begin it with keras.Input(shape)"
        )
    inputs = keras.tree.flatten(getattr(model, "inputs", None))
    outputs = keras.tree.flatten(getattr(model, "outputs", None))
    if not all(
        isinstance(each, keras.KerasTensor) for each in inputs + outputs
    ) or not (inputs and outputs):
        raise UnknownGraphError(
            f"the graph of layers of model {model.name!r} is not known, because its call "
            "method is code, as that of every subclass of keras.Model. Build it from "
            "keras.Input(shape) to keras.Model(inputs, outputs), where layers of your own "
            "count as one each; or state its layers and costs in a tfdist.research.LayerGraph"
        )
    return inputs, outputs


def slots_of(model: keras.Model) -> int:
    """Returns how many variables of a weight's shape the model's optimizer keeps."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return 0
    # A shape that only slots have: an optimizer's counters are scalars.
    shape = (2, 3)
    copy = type(optimizer).from_config(optimizer.get_config())
    copy.build([keras.Variable(keras.ops.zeros(shape))])
    return sum(tuple(variable.shape) == shape for variable in copy.variables)


def bytes_of(values: Nest) -> int:
    """Returns the bytes of tensors or variables whose shapes are known."""
    total = 0
    for each in keras.tree.flatten(values):
        if hasattr(each, "shape") and hasattr(each, "dtype"):
            size = 1
            for length in each.shape:
                size *= length or 1
            total += size * _bytes_of_dtype(keras.backend.standardize_dtype(each.dtype))
    return total


def _bytes_of_dtype(dtype: str) -> int:
    if dtype in ("bool", "string"):
        return 1
    # The first digits of the name: of "bfloat16", and of "float8_e4m3fn".
    return int("".join(c for c in dtype.split("_")[0] if c.isdigit()) or 32) // 8 or 1


class CallGraph:
    """A graph to which calls are added, each after those whose results it takes.

    What needs no gradient, since nothing before it is trained, has no backward
    computation. `slots` is how many variables of a weight's shape the optimizer keeps,
    and `rows` the number of examples where a tensor's shape does not say it.
    """

    def __init__(self, slots: int = 0, rows: int = 1) -> None:
        self._slots, self._rows = slots, rows
        self._nodes: list[LayerNode] = []
        self._edges: dict[tuple[str, str, int], LayerEdge] = {}
        # The node and output of each tensor; the tensors are kept, or Python would
        # give their ids to others.
        self._made: dict[int, tuple[str, int]] = {}
        self._kept: list[Any] = []
        self._trained: set[str] = set()
        self._names: Counter[str] = Counter()
        self._unit_of: dict[int, str] = {}

    def add_input(self, name: str, value: Any) -> None:
        """Adds an input of the model."""
        name = self._own_name(name)
        self._nodes.append(LayerNode(name, 0.0))
        self._note(name, value)

    def has(self, value: object) -> bool:
        """Returns True if a value is an input or the output of a call."""
        return id(value) in self._made

    def add(
        self,
        operation: keras.Operation,
        name: str,
        arguments: Nest,
        called: LayerCall,
        matrix: LayerMatrix | None = None,
    ) -> None:
        """Adds a call of an operation; a layer is one."""
        name = self._own_name(name)
        unit = self._unit_of.setdefault(id(operation), name)
        trainable = getattr(operation, "trainable_weights", [])
        is_trained = bool(trainable)
        for value in filter(self.has, keras.tree.flatten(arguments)):
            source, output = self._made[id(value)]
            is_trained |= source in self._trained
            has_gradient = source in self._trained and _is_float(value)
            size = self._rows * bytes_of(value)
            self._edges[source, name, output] = LayerEdge(
                source, name, size, has_gradient, output
            )
        if is_trained:
            self._trained.add(name)
        weights = bytes_of(getattr(operation, "weights", []))
        self._nodes.append(
            LayerNode(
                name,
                called.forward,
                called.backward if is_trained else 0.0,
                weights + self._slots * bytes_of(trainable),
                self._rows * bytes_of(called.outputs),
                unit,
                matrix,
            )
        )
        self._note(name, called.outputs)

    def graph(self) -> LayerGraph:
        """Returns the graph of all added calls."""
        return LayerGraph(tuple(self._nodes), tuple(self._edges.values()))

    def _own_name(self, name: str) -> str:
        """Returns a name that no other node has."""
        self._names[name] += 1
        count = self._names[name]
        return name if count == 1 else f"{name}#{count}"

    def _note(self, name: str, outputs: Nest) -> None:
        for output, value in enumerate(keras.tree.flatten(outputs)):
            self._made[id(value)] = (name, output)
            self._kept.append(value)


class _Walk:
    def __init__(self, call: CallLayer, slots: int) -> None:
        self._call, self.calls = call, CallGraph(slots)

    def run(self, inputs: Nest, outputs: Nest, values: Nest, prefix: str) -> list[Any]:
        known = {id(each): value for each, value in zip(inputs, values, strict=True)}
        nodes = list(_tf.nodes_of(keras.Function(inputs, outputs)))
        for node in with_pieces(nodes, outputs):
            args, kwargs = node.arguments.fill_in(known)
            # A part is not split further, and a model within the model not at all.
            is_possible = not prefix and not isinstance(node, PieceNode)
            matrix = matrix_of(node.operation) if is_possible else None
            found = self._visit(node.operation, args, kwargs, prefix, matrix)
            flat = keras.tree.flatten(found)
            known |= {id(e): v for e, v in zip(node.outputs, flat, strict=True)}
        return [known[id(each)] for each in outputs]

    def _visit(
        self,
        operation: keras.Operation,
        args: tuple[Nest, ...],
        kwargs: dict[str, Nest],
        prefix: str,
        matrix: LayerMatrix | None,
    ) -> Any:
        name = prefix + operation.name
        inner = _inner_ends(operation)
        values = list(filter(self.calls.has, keras.tree.flatten(args)))
        if inner is not None and len(inner[0]) == len(values):
            found = self.run(*inner, values, f"{name}/")
            return found[0] if len(found) == 1 else found
        called = self._call(operation, args, kwargs)
        self.calls.add(operation, name, (args, kwargs), called, matrix)
        return called.outputs


def _inner_ends(operation: keras.Operation) -> tuple[list[Any], list[Any]] | None:
    """Returns the symbolic inputs and outputs of a model within the model."""
    if not isinstance(operation, keras.Model):
        return None
    try:
        return _ends_of(operation)
    except UnknownGraphError:
        return None


def _is_float(value: keras.KerasTensor) -> bool:
    return "float" in keras.backend.standardize_dtype(value.dtype)
