"""An estimate of what a layer computes, from its shapes alone."""

import math
from typing import Any

import keras

from tfdist import _tf
from tfdist.model_parallel.estimated import multiplications


def cost_of(node: Any) -> float:
    """Returns about how many multiplications a call of a layer makes per example.

    Those by its weights, and one for each number of its result.

    Args:
        node: The call, of `tfdist._tf.nodes_of`.
    """
    layer = node.operation
    if isinstance(layer, keras.Model) and (inner := _tf.functional_of(layer)):
        return sum(map(cost_of, _tf.nodes_of(inner)))
    results = [[each or 1 for each in output.shape[1:]] for output in node.outputs]
    of_result = sum(math.prod(shape) for shape in results)
    return float(of_result + multiplications(layer, node.outputs))
