"""A part of a graph that can be added to any number of functions."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


class Fragment:
    """A `GraphDef` whose inputs are given when it is added to a function.

    Args:
        definition: The `GraphDef`, without the operations that its inputs name.
        inputs: The names of its inputs, such as `x:0`; it may use only some of them.
    """

    def __init__(self, definition: Any, inputs: Sequence[str]) -> None:
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
        """The number of its operations."""
        return len(self._definition.node)

    def add(
        self, given: Sequence[tf.Tensor], outputs: Sequence[str], name: str
    ) -> list[tf.Tensor]:
        """Adds it to the function being traced.

        Args:
            given: Its inputs.
            outputs: The names of tensors, which may be inputs.
            name: How the names of its operations begin.

        Returns:
            The tensors of these names.
        """
        known: Mapping[str, tf.Tensor] = dict(zip(self._inputs, given, strict=True))
        computed = [each for each in dict.fromkeys(outputs) if each not in known]
        results = tf.graph_util.import_graph_def(
            self._definition,
            {each: known[each] for each in self._used},
            computed,
            name=name,
        )
        known = {**known, **dict(zip(computed, results, strict=True))}
        return [known[each] for each in outputs]
