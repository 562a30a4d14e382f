"""The fence: every private symbol of TensorFlow and Keras that tfdist uses.

Each has the reason why no public symbol serves. All of them were tried with
TensorFlow 2.16.2 and 2.21.0 and with Keras 3.12.0 and 3.15.1. Nothing outside
this file imports from `tensorflow.python` or `keras.src`.
"""

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.core import Variable as KerasVariable
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from tensorflow.python.data.ops.dataset_ops import _VariantDataset
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
    ParameterServerStrategyV2Extended,
)
from tensorflow.python.distribute.ps_values import CachingVariable
from tensorflow.python.distribute.sharded_variable import ShardedVariable

__all__ = [
    # Keras calls the strategy only while it traces its own step, on the chief. To
    # send the step to a worker, its methods have to answer for themselves.
    "KerasVariable",
    "TFEpochIterator",
    "TensorFlowTrainer",
    # `tf.distribute.StrategyExtended` is public, but the parameter-server class
    # with the methods that decide a variable's ps is not.
    "ParameterServerStrategyV2Extended",
    # What the strategy returns for a variable; its reads and writes are ours.
    "CachingVariable",
    # To recognise a partitioned variable.
    "ShardedVariable",
    # The graph of a dataset, and a dataset from a graph.
    "copy_dataset",
    "scratch_graph",
    # Every layer inside a model; `Model.layers` gives the outermost alone.
    "flatten_layers",
]


def scratch_graph(name: str) -> tf.Graph:
    """Returns a graph to trace into and throw away.

    Unlike `tf.Graph`, it may capture eager tensors of its surroundings.
    """
    return tf.__internal__.FuncGraph(name)


def copy_dataset(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Rebuilds a dataset from its graph, on this process as it is now.

    Connecting to a cluster renames the local devices. A dataset made before that
    is bound to the old name and cannot be iterated; its graph is not.
    """
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=dataset._variant_tensor,
        external_state_policy=0,  # warn, and carry on
        strip_device_assignment=True,
    )
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return _VariantDataset(variant, dataset.element_spec)


def flatten_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the model's layers, those inside of layers too."""
    return list(model._flatten_layers(include_self=False))
