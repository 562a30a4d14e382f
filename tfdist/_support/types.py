"""Short names of types, and of types that TensorFlow and Keras do not name."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

GraphDef: TypeAlias = tf.compat.v1.GraphDef
NodeDef: TypeAlias = tf.compat.v1.NodeDef

Nest = Any
"""Tensors, specs or values, or tuples, lists and dicts of them, as `tf.nest` takes them."""

Logs = dict[str, Any]
"""Keras's logs: metrics by name."""

After: TypeAlias = Sequence[tf.Tensor | tf.Operation]
"""The control dependencies of an operation, as `tf.control_dependencies` takes it."""
