"""Train with a placement defined in the script."""

import json

import keras
import numpy as np
import tensorflow as tf

import tfdist

PS = {"far": 1, "nowhere": 7}


class ByName:
    def place(self, variable, num_ps):
        return next((ps for part, ps in PS.items() if part in variable.name), 0)


strategy = tfdist.ParameterServerStrategy(
    placement=ByName(),
    variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=1000, max_shards=2
    ),
)
said = {}
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, name="near"),
            keras.layers.Dense(1, name="far"),
        ]
    )
    model.compile("sgd", "mse")
    said["devices"] = {v.path: v.value.device for v in model.variables}
    try:
        keras.layers.Dense(3, name="nowhere").build((None, 4))
    except ValueError as error:
        said["nowhere"] = str(error)
    large = keras.layers.Dense(4, name="large", use_bias=False)
    large.build((None, 600))
    said["kernel"] = [shard.device for shard in large.kernel.value.shards]
    split = tf.Variable(np.zeros((600, 1), "float32"))
    said["shards"] = [shard.device for shard in split.variables]
x = np.ones((16, 4), "float32")
said["loss"] = model.fit(x, x[:, :1], batch_size=4, verbose=0).history["loss"]
print(json.dumps(said))
