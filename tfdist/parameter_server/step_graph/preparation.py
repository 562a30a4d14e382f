"""What a worker does with a function's graph before it first runs it."""

from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.parameter_server.step_graph.unrolling import is_optimized


def prepare_quickly(function: Any) -> None:
    """Keeps TensorFlow's graph optimizers from a function too large for them.

    Not if a worker has a GPU, where the layout that they choose makes convolutions faster,
    nor if the program has turned one of them on.

    Args:
        function: A `ConcreteFunction` that a coordinator sends to workers.
    """
    if is_optimized(_size(function)) or _workers_have_gpus():
        return
    if not any(tf.config.optimizer.get_experimental_options().values()):
        _tf.leave_out_graph_optimizers(function)


def _size(function: Any) -> int:
    """The number of its operations, and of those in its branches and loops."""
    definition = function.graph.as_graph_def()
    functions = definition.library.function
    return len(definition.node) + sum(len(each.node_def) for each in functions)


def _workers_have_gpus() -> bool:
    """Whether a worker of this process's cluster has a GPU."""
    devices = tf.config.list_logical_devices("GPU")
    return any("/job:worker/" in each.name for each in devices)
