"""A pipeline of TFRecord files: interleaved, parsed, batched, for a small CNN."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

SAME_WEIGHTS = True
WITHIN = 0.3

SIZE = 8


def example_of(image, label):
    bytes_list = tf.train.BytesList(value=[tf.io.serialize_tensor(image).numpy()])
    features = {
        "image": tf.train.Feature(bytes_list=bytes_list),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def write_files(pattern, images, labels, num_files=3):
    for index in range(num_files):
        with tf.io.TFRecordWriter(pattern.format(index)) as writer:
            rows = slice(index, None, num_files)
            for image, label in zip(images[rows], labels[rows], strict=True):
                writer.write(example_of(image, label).SerializeToString())


def parse(record):
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(record, features)
    image = tf.io.parse_tensor(example["image"], tf.float32)
    return tf.reshape(image, (SIZE, SIZE, 1)), example["label"]


def main(strategy, directory):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, size=100)
    images = 0.3 * rng.normal(size=(100, SIZE, SIZE, 1)).astype("float32")
    images[np.arange(100), 2 + labels] += 1.0
    # Every worker writes the files that it reads.
    index = getattr(strategy.extended, "worker_index", 0)
    write_files(f"{directory}/{index}-{{}}.tfrecord", images, labels)

    files = tf.data.Dataset.list_files(f"{directory}/{index}-*", shuffle=False)
    dataset = (
        files.interleave(tf.data.TFRecordDataset, cycle_length=3)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(16)
        .prefetch(tf.data.AUTOTUNE)
    )

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((SIZE, SIZE, 1)),
                layers.Conv2D(8, 3, activation="relu"),
                layers.Flatten(),
                layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    model.fit(dataset, epochs=4, verbose=0)
    return {
        "accuracy": model.evaluate(dataset, return_dict=True, verbose=0)["accuracy"]
    }, model
