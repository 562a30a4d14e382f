"""An estimate of what a layer computes, from its shapes alone."""

import math
from typing import Any

import keras

from tfdist import _tf


def cost_of(node: Any) -> float:
    """Returns about how many multiplications a call of a layer makes per example.

    Each weight matrix counts once for every position of the output: every step of a
    sequence, every pixel. A lookup in a table counts its result alone.

    Args:
        node: The call, of `tfdist._tf.nodes_of`.
    """
    layer = node.operation
    if isinstance(layer, keras.Model) and (inner := _tf.functional_of(layer)):
        return sum(map(cost_of, _tf.nodes_of(inner)))
    shapes = [[each or 1 for each in output.shape[1:]] for output in node.outputs]
    result = float(sum(math.prod(shape) for shape in shapes))
    if isinstance(layer, keras.layers.Embedding):
        return result
    positions = max((math.prod(shape[:-1]) for shape in shapes), default=1)
    matrices = [
        math.prod(each.shape)
        for each in getattr(layer, "trainable_variables", ())
        if len(each.shape) > 1
    ]
    return result + positions * sum(matrices)
