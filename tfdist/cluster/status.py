"""Publishes a task's TF_CONFIG through its server.

It is a scalar string variable in the task's memory, which `python -m launch.doctor`
reads through the server. TensorFlow does not expose the addresses it was given.
"""

import tensorflow as tf

import tf_config
from tf_config import contract


def publish(config: tf_config.TFConfig, server: tf.distribute.Server) -> None:
    """Publishes the cluster and the task that a server was started with."""
    with tf.Graph().as_default() as graph:
        assignment = _assign(config)
    # Without the filter, the session would wait for every task of the cluster.
    options = tf.compat.v1.ConfigProto(device_filters=[config.task.device])
    with tf.compat.v1.Session(server.target, graph=graph, config=options) as session:
        session.run(assignment)


def publish_here(config: tf_config.TFConfig) -> None:
    """Publishes this process's cluster and task, once it has joined the cluster."""
    with tf.init_scope():
        _assign(config)


def _assign(config: tf_config.TFConfig) -> tf.Operation | None:
    with tf.device(f"{config.task.device}/device:CPU:0"):
        variable = tf.raw_ops.VarHandleOp(
            dtype=tf.string,
            shape=[],
            container=contract.STATUS_CONTAINER,
            shared_name=contract.STATUS_VARIABLE,
        )
        return tf.raw_ops.AssignVariableOp(
            resource=variable, value=tf.constant(config.to_json())
        )
