"""Trains a pipeline on two workers, and writes where it was computed.

    python -m launch.local --num_ps=0 --num_workers=2 --program=coordinator \
        tests/programs/pipeline_stages.py DIRECTORY
"""

import contextlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist


@keras.saving.register_keras_serializable("tests")
class Where(keras.layers.Layer):
    """Notes the number of the process that computes it."""

    def build(self, shape):
        # In pieces: a number of a process is larger than float32 can hold exactly.
        self.process = self.add_weight(shape=(2,), initializer="zeros", trainable=False)

    def call(self, x):
        stat = tf.io.read_file("/proc/self/stat")
        number = tf.strings.to_number(tf.strings.split(stat, " ")[0], tf.int32)
        pieces = tf.stack([number // 1000, number % 1000])
        self.process.assign(tf.cast(pieces, tf.float32))
        return x


def make():
    layers = keras.layers
    image = keras.Input((4,))
    x = first = layers.Dense(8, "relu", name="first")(image)
    x = Where(name="where_first")(x)
    x = layers.Dense(8, "relu", name="second")(x)
    x = layers.add([x, first], name="skip")
    x = Where(name="where_second")(x)
    return keras.Model(image, layers.Dense(1, name="last")(x))


STAGES = [["first", "where_first"], ["second", "skip", "where_second", "last"]]


def train(strategy=None, make=make, split=None, **options):
    keras.utils.set_random_seed(3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = tfdist.research.split_layers(make(), split) if split else make()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    x = np.random.default_rng(1).normal(size=(20, 4)).astype("float32")
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0} | options
    history = model.fit(x, x[:, :1], **options)
    return model, x, history.history


def process_of(model, name):
    pieces = model.get_layer(name).process.numpy()
    return int(pieces[0]) * 1000 + int(pieces[1])


def main(directory):
    strategy = tfdist.research.PipelineStrategy(STAGES, microbatches=3, schedule="1f1b")
    plain, x, expected = train()
    model, _, history = train(strategy)
    kept = Path(directory, "model.keras")
    model.save(kept)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    saved = checkpoint.write(str(Path(directory, "checkpoint")))
    restored = make()
    tf.train.Checkpoint(model=restored).read(saved).expect_partial()
    predicted = model.predict(x, verbose=0)
    found = {
        "chief": os.getpid(),
        "processes": [process_of(model, f"where_{n}") for n in ("first", "second")],
        "devices": {w.path: w.value.device for w in model.weights},
        "slots": {v.path: v.value.device for v in model.optimizer.variables},
        "expected": expected,
        "history": history,
        "difference": difference(model, plain),
        "predicted": float(np.abs(predicted - plain.predict(x, verbose=0)).max()),
        "evaluated": model.evaluate(x, x[:, :1], verbose=0),
        "evaluated_alone": plain.evaluate(x, x[:, :1], verbose=0),
        "loaded": difference(keras.models.load_model(kept), model),
        "restored": difference(restored, model),
    }
    Path(directory, "found.json").write_text(json.dumps(found))


def without_waiting(directory):
    """Trains with results of earlier steps: alone in an epoch, a batch has no other."""
    strategy = tfdist.research.PipelineStrategy(STAGES, microbatches=1, max_staleness=2)
    plain, x, expected = train(batch_size=20)
    model, _, history = train(strategy, batch_size=20)
    found = {
        "difference": difference(model, plain),
        "expected": expected,
        "history": history,
        "processes": [process_of(model, f"where_{n}") for n in ("first", "second")],
    }
    many = model.fit(x, x[:, :1], batch_size=4, epochs=3, verbose=0)
    found["losses"] = many.history["loss"]
    found["iterations"] = int(model.optimizer.iterations)
    Path(directory, "found.json").write_text(json.dumps(found))


class Seen(keras.layers.Layer):
    """Leaves a file with the number of each process that computes it."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def call(self, x):
        stat = tf.io.read_file("/proc/self/stat")
        number = tf.strings.split(stat, " ")[0]
        tf.io.write_file(tf.strings.join([self.directory, "/seen/", number]), "")
        return x


def replicas(directory):
    """Trains the whole model on each of two workers, half of each batch on each."""

    def with_seen():
        model = make()
        return keras.Model(model.inputs, Seen(directory)(model.output))

    strategy = tfdist.research.PipelineStrategy(1, microbatches=2, replicas=2)
    plain, x, expected = train()
    model, _, history = train(strategy, make=with_seen)
    found = {
        "seen": [each.name for each in Path(directory, "seen").iterdir()],
        "chief": os.getpid(),
        "devices": {w.path: w.value.device for w in model.weights},
        "difference": difference(model, plain),
        "expected": expected,
        "history": history,
    }
    Path(directory, "found.json").write_text(json.dumps(found))


def split(directory):
    """Trains layers that are split over both workers."""
    strategy = tfdist.research.PipelineStrategy(1, microbatches=3)
    plain, x, expected = train()
    parts = {"first": 2, "second": tfdist.research.Split(2, "rows")}
    model, _, history = train(strategy, split=parts)
    kept = Path(directory, "model.weights.h5")
    model.save_weights(kept)
    loaded = make()
    loaded.load_weights(kept)
    found = {
        "difference": difference(loaded, plain),
        "expected": expected,
        "history": history,
        "parts": strategy.parts_of(model),
        "devices": {w.path: w.value.device for w in model.weights},
        "slots": {v.path: v.value.device for v in model.optimizer.variables},
        "predicted": float(np.abs(model.predict(x, verbose=0) - loaded(x)).max()),
    }
    Path(directory, "found.json").write_text(json.dumps(found))


def difference(one, other):
    pairs = zip(one.trainable_weights, other.trainable_weights, strict=True)
    return max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in pairs)


if __name__ == "__main__":
    runs = {
        "--without_waiting": without_waiting,
        "--replicas": replicas,
        "--split": split,
    }
    runs.get(sys.argv[-1], main)(sys.argv[1])
