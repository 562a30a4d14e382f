"""The chief of benchmarks/data_path.py: trains for an epoch by the route in each line.

    python benchmarks/data_path_chief.py RECORDS EXAMPLES DISPATCHER

It answers each line with what it measured, as a line of JSON.
"""

import json
import sys
import time
from typing import Any

import keras
import tensorflow as tf
from data_path import BATCH, ROUTES, SHAPE
from tensorflow.data.experimental import service

import tfdist


def parse(records: Any) -> tuple[Any, Any]:
    """Returns the images of a batch of records, and labels."""
    images = tf.reshape(tf.io.decode_raw(records, tf.uint8), [-1, *SHAPE])
    return images, tf.cast(images[:, 0, 0, :1], tf.float32)


def pipeline(directory: str, route: str, dispatcher: str, epoch: int) -> Any:
    """Returns the dataset of a route."""
    files = tf.data.Dataset.list_files(f"{directory}/*.tfrecord", seed=1)
    records = files.interleave(
        tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE
    )
    options = tf.data.Options()
    if route == "chief":
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
    batches = records.shuffle(64, seed=1).batch(BATCH)
    batches = batches.map(parse, tf.data.AUTOTUNE).with_options(options)
    if route in ("endless", "service"):
        batches = batches.repeat()
    if route == "service":
        return through_service(batches, dispatcher, f"epoch {epoch}")
    return batches


def through_service(batches: Any, dispatcher: str, job: str) -> Any:
    """Returns batches of an endless dataset as tf.data service gives them to the workers.

    Args:
        batches: The dataset.
        dispatcher: The address of the dispatcher.
        job: The name of the job that the workers share. An iterator that joins the job of
            earlier ones gets what these have left.
    """
    return batches.apply(
        service.distribute(
            service.ShardingPolicy.DYNAMIC,
            f"grpc://{dispatcher}",
            job_name=job,
            # The benchmark's images would vanish in it, and those of a camera hardly do.
            compression=None,
        )
    )


def make_model(strategy: tfdist.ParameterServerStrategy, examples: int) -> Any:
    """Returns the model, and a variable that counts how often it has seen each example."""
    with strategy.scope():
        seen = tf.Variable(tf.zeros([examples], tf.int32))

    class Seen(keras.layers.Layer):
        """Counts each image by the number that it consists of."""

        def call(self, images: Any) -> Any:
            low, high = tf.unstack(tf.cast(images[:, 0, 0, :2], tf.int32), axis=1)
            ones = tf.ones_like(low)
            seen.scatter_add(tf.IndexedSlices(ones, low + 256 * high))
            return images

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input(SHAPE, dtype="uint8"),
                Seen(),
                keras.layers.Rescaling(1 / 255),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse")
    return model, seen


def main(directory: str, examples: str, dispatcher: str) -> None:
    """Trains, and reports."""
    strategy = tfdist.ParameterServerStrategy(startup_timeout=200.0)
    model, seen = make_model(strategy, int(examples))
    data = {route: pipeline(directory, route, dispatcher, 0) for route in ROUTES}
    steps, before = -(-int(examples) // BATCH), seen.numpy()
    for epoch, line in enumerate(sys.stdin, 1):
        route = line.strip()
        if route == "service":
            data[route] = pipeline(directory, route, dispatcher, epoch)
        began = time.perf_counter()
        model.fit(
            data[route],
            steps_per_epoch=steps if route in ("endless", "service") else None,
            verbose=0,
        )
        seconds = time.perf_counter() - began
        before, counts = (now := seen.numpy()), now - before
        told = {
            "seconds": seconds,
            "steps": list(strategy.worker_report().steps),
            "examples": int(counts.sum()),
            "missed": int((counts == 0).sum()),
        }
        print(json.dumps(told), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
