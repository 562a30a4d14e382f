"""Under which strategies a table may grow."""

import tensorflow as tf

import tfdist

from ..support.raising import raises


def one_device():
    return tf.distribute.OneDeviceStrategy("CPU:0")


def test_a_table_grows_on_one_device():
    with one_device().scope():
        table = tfdist.embedding.DynamicEmbedding(4, max_rows=10)
        table(tf.constant([7]), training=True)
    assert table.size() == 1


def test_a_table_is_refused_where_each_process_has_its_own_model():
    strategy = one_device()
    # As LocalUpdateStrategy and PipelineStrategy, which need a cluster.
    strategy.fit_driver = object()
    table = tfdist.embedding.DynamicEmbedding(4, max_rows=10)
    with strategy.scope(), raises(ValueError, "ParameterServerStrategy"):
        table.build()
