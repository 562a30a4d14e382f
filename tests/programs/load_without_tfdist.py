"""Load what a strategy saved, without a cluster and without tfdist: DIRECTORY."""

import json
import os
import pathlib
import sys

import keras
import tensorflow as tf

assert "TF_CONFIG" not in os.environ
assert "tfdist" not in sys.modules
path = pathlib.Path(sys.argv[1])
x = tf.constant(json.loads(sys.stdin.read()), tf.float32)


def built():
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    )


by_weights, by_checkpoint = built(), built()
by_weights.load_weights(path / "model.weights.h5")
status = tf.train.Checkpoint(model=by_checkpoint).restore(
    tf.train.latest_checkpoint(path / "checkpoint")
)
status.assert_existing_objects_matched().expect_partial()
whole = keras.models.load_model(path / "model.keras")
exported = tf.saved_model.load(path / "exported")
predictions = {
    "model.keras": whole(x),
    "model.h5": keras.models.load_model(path / "model.h5", compile=False)(x),
    "model.weights.h5": by_weights(x),
    "checkpoint": by_checkpoint(x),
    "exported": exported.serve(x),
    "exported, loaded by Keras": keras.layers.TFSMLayer(path / "exported")(x),
}
print(json.dumps({name: p.numpy().tolist() for name, p in predictions.items()}))
print(json.dumps([v.numpy().tolist() for v in whole.optimizer.variables]))
