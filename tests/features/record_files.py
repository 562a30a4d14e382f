"""TFRecord files whose records have numbers, and what the chief sends of them."""

import os

import numpy as np
import tensorflow as tf

SAMPLES = 45
STEPS = 6  # Batches of 8, and one of 5.
ONCE = np.ones(SAMPLES)
WIDTH = 4200  # Floats per record.
AUTOTUNE = tf.data.AUTOTUNE


def write(path, numbers):
    with tf.io.TFRecordWriter(path) as file:
        for number in numbers:
            row = np.full(WIDTH, number / SAMPLES, "float32")
            row[-1] = number
            file.write(row.tobytes())


def parse(record):
    numbers = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [WIDTH])
    return numbers[:4], numbers[-1:]


def off(data):
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.OFF
    options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options)


def batched(paths):
    return tf.data.TFRecordDataset(paths).map(parse, AUTOTUNE).batch(8)


def interleaved(paths):
    files = tf.data.Dataset.list_files(paths, seed=1)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=AUTOTUNE)
    return records.shuffle(20, seed=2).map(parse).batch(8).prefetch(AUTOTUNE)


def is_lease(row):
    # A serialized tensor begins with its type. No batch here begins with strings.
    return row[0].startswith(bytes([8, tf.string.as_datatype_enum]))


def numbers_in(row, paths):
    """The numbers of the records of a batch, or of its lease."""
    if not is_lease(row):
        return (
            tf.io.parse_tensor(row[1], tf.float32).numpy().ravel().astype(int).tolist()
        )
    size = os.path.getsize(paths[0]) // (SAMPLES // 3)
    places = tf.io.parse_tensor(row[0], tf.string).numpy()
    names = [os.fsencode(path) for path in paths]
    return [
        names.index(place[20:]) * SAMPLES // 3 + int(place[:20]) // size
        for place in places
    ]
