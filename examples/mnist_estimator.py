"""Trains a small CNN on MNIST as an Estimator, on TensorFlow 2.16 or newer.

The program is written for TensorFlow 2.15 and older; only its import of the Estimator has
changed. mnist_cnn.py is the same model in Keras.

A cluster of parameter servers and workers, and an evaluator, all on this machine:

    tfdist local --num_ps=2 --num_workers=2 --evaluator \
        examples/mnist_estimator.py

One process, on one device or on 4 CPU devices, or several synchronous workers:

    python examples/mnist_estimator.py --strategy=none
    python examples/mnist_estimator.py --strategy=mirrored
    tfdist local --num_ps=0 --num_workers=2 \
        examples/mnist_estimator.py --strategy=multi_worker

A second run resumes from the last checkpoint in `--model_dir`.
"""

from __future__ import annotations

import pathlib

import mnist_5k  # noqa: F401  Importing it registers the dataset.
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app, flags, logging

import tfdist
from tfdist import estimator

STRATEGIES = ("parameter_server", "none", "mirrored", "multi_worker")
STAND_INS = 4
IMAGE = (28, 28, 1)

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "strategy", "parameter_server", STRATEGIES, "How training is distributed."
)
flags.DEFINE_string(
    "model_dir", "/tmp/mnist_estimator", "Directory of checkpoints and exports."
)
flags.DEFINE_integer("max_steps", 600, "Global step at which to stop.", lower_bound=1)
flags.DEFINE_integer("batch_size", 40, "Images per step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 1e-3, "Learning rate of Adam.", lower_bound=0.0)
flags.DEFINE_integer("save_steps", 200, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_integer("shards", 2, "Shards per variable.", lower_bound=1)
flags.DEFINE_string(
    "data_dir", None, "Where TFDS stores data; its own default if unset."
)


def model_fn(features, labels, mode, params):
    """A CNN with 62,346 parameters, from uint8 images to the logits of 10 digits."""

    def weights(name, shape):
        return tf.compat.v1.get_variable(
            name, shape, initializer=tf.compat.v1.glorot_uniform_initializer()
        )

    def bias(size):
        zeros = tf.compat.v1.zeros_initializer()
        return tf.compat.v1.get_variable("bias", [size], initializer=zeros)

    def convolution(x, name, inputs, outputs):
        with tf.compat.v1.variable_scope(name):
            x = tf.nn.conv2d(x, weights("kernel", [5, 5, inputs, outputs]), 1, "VALID")
            return tf.nn.max_pool2d(tf.nn.relu(x + bias(outputs)), 2, 2, "VALID")

    x = tf.cast(features["image"], tf.float32) / 255
    x = convolution(x, "conv1", 1, 32)
    x = convolution(x, "conv2", 32, 64)
    with tf.compat.v1.variable_scope("dense"):
        x = tf.reshape(x, [-1, 4 * 4 * 64])
        logits = tf.matmul(x, weights("kernel", [4 * 4 * 64, 10])) + bias(10)
    digits = tf.argmax(logits, axis=1)

    if mode == estimator.ModeKeys.PREDICT:
        predictions = {"digit": digits, "probability": tf.nn.softmax(logits)}
        return estimator.EstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={
                "serving_default": estimator.export.PredictOutput(predictions)
            },
        )
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == estimator.ModeKeys.EVAL:
        accuracy = tf.compat.v1.metrics.accuracy(labels, digits)
        return estimator.EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"accuracy": accuracy}
        )
    optimizer = tf.compat.v1.train.AdamOptimizer(params["learning_rate"])
    step = tf.compat.v1.train.get_global_step()
    return estimator.EstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step)
    )


def input_fn(split, batch_size):
    """Batches of ({"image": uint8 `[batch, 28, 28, 1]`}, labels `[batch]`)."""
    data = tfds.load(
        "mnist_5k", split=split, as_supervised=True, data_dir=FLAGS.data_dir
    )
    if split == "train":
        data = data.shuffle(4000).repeat()
    return data.map(lambda image, label: ({"image": image}, label)).batch(batch_size)


def serving_input_receiver_fn():
    """The input of the exported model: a batch of images."""
    images = tf.compat.v1.placeholder(tf.uint8, [None, *IMAGE], "image")
    return estimator.export.ServingInputReceiver({"image": images}, {"image": images})


def make_strategy(name):
    """Returns the strategy that `--strategy` names, or None."""
    if name == "parameter_server":
        return estimator.ParameterServerStrategy(
            placement=tfdist.GreedyLoadBalancing(),
            partitioner=tfdist.fixed_size_partitioner(FLAGS.shards),
        )
    if name == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * STAND_INS
        tf.config.set_logical_device_configuration(cpu, devices)
        return tf.distribute.MirroredStrategy(
            [f"CPU:{index}" for index in range(STAND_INS)], tfdist.RingAllReduce()
        )
    return estimator.MultiWorkerMirroredStrategy() if name == "multi_worker" else None


def main(argv):
    """Runs this task, whatever its role."""
    del argv
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel("ERROR")  # INFO logs every checkpoint and loss.
    tfds.disable_progress_bar()
    tfds.builder("mnist_5k", data_dir=FLAGS.data_dir).download_and_prepare()
    strategy = make_strategy(FLAGS.strategy)
    config = estimator.RunConfig(
        model_dir=FLAGS.model_dir,
        save_checkpoints_steps=FLAGS.save_steps,
        experimental_max_worker_delay_secs=0,
        train_distribute=strategy,
    )
    classifier = estimator.Estimator(
        model_fn, config=config, params={"learning_rate": FLAGS.learning_rate}
    )
    train_spec = estimator.TrainSpec(
        lambda: input_fn("train", FLAGS.batch_size), max_steps=FLAGS.max_steps
    )
    eval_spec = estimator.EvalSpec(
        lambda: input_fn("test", 100),
        steps=None,
        exporters=estimator.FinalExporter("digits", serving_input_receiver_fn),
        start_delay_secs=0,
        throttle_secs=1,
    )
    estimator.train_and_evaluate(classifier, train_spec, eval_spec)
    if FLAGS.strategy == "parameter_server" and config.is_chief:
        print(strategy.placement_report())
    if not config.cluster_spec:  # In one process, or as the evaluator.
        result = classifier.evaluate(eval_spec.input_fn)
        print(f"Step {result['global_step']}: accuracy {result['accuracy']:.4f}")
        *_, last = sorted(pathlib.Path(FLAGS.model_dir, "export", "digits").iterdir())
        print(f"Exported to {last}")


if __name__ == "__main__":
    app.run(main)
