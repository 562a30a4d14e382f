"""Load an exported model whose variables were in shards: MODEL INPUT OUTPUT."""

import sys

import keras
import numpy as np
import tensorflow as tf

exported = tf.saved_model.load(sys.argv[1])
inputs = np.load(sys.argv[2])["x"]
served = keras.layers.TFSMLayer(sys.argv[1], call_endpoint="serve")
assert "tfdist" not in sys.modules
assert [w.shape for w in served.trainable_weights] == [
    w.shape for w in exported.trainable_variables
]
weights = {f"w{i}": each.numpy() for i, each in enumerate(exported.variables)}
np.savez(sys.argv[3], y=exported.serve(inputs), layer=served(inputs), **weights)
