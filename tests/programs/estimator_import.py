"""Importing the Estimator leaves TensorFlow and Keras unchanged."""

import sys

import keras
import tensorflow as tf
from tensorflow.python.util import tf_export

import tfdist  # noqa: F401 - which must not import the Estimator

v1 = tf.compat.v1


def state():
    owners = (
        keras,
        keras.Model,
        keras.optimizers.Optimizer,
        tf_export,
        v1.train.Saver,
        v1.train.WorkerSessionCreator,
        v1.distribute.Strategy,
        tf.distribute.Strategy,
        v1.distribute.experimental.ParameterServerStrategy,
    )
    names = {(str(o), n): id(v) for o in owners for n, v in vars(o).items()}
    return names, dict(tf_export.API_ATTRS), v1.train.MonitoredTrainingSession


before = state()
assert "tfdist.estimator" not in sys.modules
from tfdist import estimator  # noqa: E402

assert state() == before
assert tf.keras.__version__ == keras.__version__
assert (
    estimator.Estimator.__module__ == "tensorflow_estimator.python.estimator.estimator"
)
assert "tensorflow.python.distribute.estimator_training" not in sys.modules
print("same")
