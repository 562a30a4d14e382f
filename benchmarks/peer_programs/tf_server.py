"""A ps or a worker of TensorFlow's own `ParameterServerStrategy`, as its guide has it."""

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
server = tf.distribute.Server(
    resolver.cluster_spec(),
    job_name=resolver.task_type,
    task_index=resolver.task_id,
    protocol="grpc",
)
server.join()
