"""A part of a graph that can be added to any number of functions."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfdist._support.types import GraphDef


class GraphFragment:
    """A `GraphDef` whose inputs are given when it is added to a function."""

    def __init__(self, definition: GraphDef, inputs: Sequence[str]) -> None:
        self._definition = definition
        self._inputs = tuple(inputs)
        used = {
            name.removeprefix("^").partition(":")[0]
            for node in definition.node
            for name in node.input
        }
        self._used = {each for each in inputs if each.partition(":")[0] in used}

    @property
    def size(self) -> int:
        """The number of its operations, and of those in its branches and loops."""
        functions = self._definition.library.function
        return len(self._definition.node) + sum(len(f.node_def) for f in functions)

    def add(
        self, given: Sequence[tf.Tensor], outputs: Sequence[str], name: str
    ) -> list[tf.Tensor]:
        """Adds it to the function being traced, and returns the tensors named `outputs`.

        These may be inputs. The names of its operations begin with `name`.
        """
        # The function may be the body of a loop, which captures what it uses, and waits
        # for all that it captures.
        capture = tf.compat.v1.get_default_graph().capture
        known: Mapping[str, tf.Tensor] = {
            each: capture(tensor)
            for each, tensor in zip(self._inputs, given, strict=True)
            if each in self._used or each in outputs
        }
        computed = [each for each in dict.fromkeys(outputs) if each not in known]
        results = tf.graph_util.import_graph_def(
            self._definition,
            {each: known[each] for each in self._used},
            computed,
            name=name,
        )
        known = {**known, **dict(zip(computed, results, strict=True))}
        return [known[each] for each in outputs]
