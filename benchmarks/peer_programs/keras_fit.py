"""The chief of Keras `fit` on parameter servers, or `fit` in one process.

A run of requests for the same number of steps is one `fit` with an epoch for each, as in
a user's program; nothing is built or traced between them.
"""

import itertools
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from peer_programs.control import Control, Task
from peer_programs.data import DEEP, data_of, initial_weights


def _strategy(task: Task) -> Any:
    library = task.options["library"]
    if library == "tfdist":
        import tfdist

        every = task.options.get("every")
        options: dict[str, Any] = (
            {"exchange": tfdist.ExchangeEvery(every)} if every else {}
        )
        if "wire_dtype" in task.options:
            options["wire_dtype"] = task.options["wire_dtype"]
        return tfdist.ParameterServerStrategy(**options)
    if library == "synchronous":
        import tfdist

        return tfdist.MultiWorkerMirroredStrategy()
    if library == "tf_keras":
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        return tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.get_strategy()


def _layers(keras: Any, model: str) -> list[Any]:
    layers = keras.layers
    if model == "mlp":
        return [keras.Input((784,)), layers.Dense(256, activation="relu")]
    if model == "deep":
        # A half of the pixels on each side where there are more channels.
        strides = [1 + (a != b) for a, b in itertools.pairwise((1, *DEEP))]
        return [
            keras.Input((28, 28, 1)),
            *(
                layers.Conv2D(channels, 3, stride, "same", activation="relu")
                for channels, stride in zip(DEEP, strides, strict=True)
            ),
            layers.GlobalAveragePooling2D(),
        ]
    return [
        keras.Input((28, 28, 1)),
        layers.Conv2D(32, 5, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 5, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
    ]


def _recommender(keras: Any, growing: bool) -> Any:
    from peer_programs.clicks import INITIAL_RANGE, MAX_ROWS, ROWS, TAGS, WIDTH

    import tfdist

    initial = keras.initializers.RandomUniform(-INITIAL_RANGE, INITIAL_RANGE)
    options = {"embeddings_initializer": initial}
    user, tags = (keras.Input(shape, dtype="int64") for shape in ((), (TAGS,)))
    if growing:
        options["max_rows"] = MAX_ROWS
        of_users = tfdist.embedding.DynamicEmbedding(WIDTH, **options)
        of_tags = tfdist.embedding.DynamicEmbeddingBag(WIDTH, "mean", **options)
    else:
        of_users = tfdist.embedding.Embedding(ROWS, WIDTH, **options)
        of_tags = tfdist.embedding.EmbeddingBag(ROWS, WIDTH, "mean", **options)
    rows = keras.ops.concatenate([of_users(user), of_tags(tags)], 1)
    hidden = keras.layers.Dense(64, activation="relu")(rows)
    if growing:
        for table in (of_users, of_tags):
            _give_all_a_row(table, ROWS)
    return keras.Model([user, tags], keras.layers.Dense(1)(hidden))


def _give_all_a_row(table: Any, rows: int) -> None:
    """Creates as many rows as a table that does not grow has from the start."""
    random = np.random.default_rng(1)
    initial = table.embeddings_initializer
    for ids in np.array_split(np.arange(rows), 10):
        shape = len(ids), table.output_dim
        values = random.uniform(initial.minval, initial.maxval, shape)
        table.upsert(ids, np.float32(values))


def _model(keras: Any, task: Task) -> Any:
    losses = keras.losses
    if task.model == "recommender":
        model = _recommender(keras, task.options.get("growing", False))
        loss = losses.BinaryCrossentropy(from_logits=True)
    else:
        layers = [*_layers(keras, task.model), keras.layers.Dense(10)]
        model = keras.Sequential(layers)
        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizers = keras.optimizers
    optimizer = {
        "sgd": optimizers.SGD,
        "adam": optimizers.Adam,
        "adagrad": optimizers.Adagrad,
    }
    model.compile(
        optimizer=optimizer[task.optimizer](task.learning_rate),
        loss=loss,
        steps_per_execution=task.options["steps"],
    )
    weights = initial_weights(task.model)
    if task.model == "recommender":
        # Not `model.set_weights`, which sets the tables too.
        dense = [each for each in model.layers if isinstance(each, keras.layers.Dense)]
        for layer, kernel, bias in zip(dense, weights[::2], weights[1::2], strict=True):
            layer.set_weights([kernel, bias])
    else:
        model.set_weights(weights)
    return model


def _pipeline(task: Task) -> tf.data.Dataset:
    *inputs, labels = data_of(task).batches()
    batches = tf.data.Dataset.from_tensor_slices((_one_or_all(inputs), labels))
    batches = batches.repeat()
    if share := task.options.get("new_ids"):
        batches = batches.map(
            lambda ids, labels: (tuple(_some_new(each, share) for each in ids), labels)
        )
    return batches.prefetch(2)


def _some_new(ids: tf.Tensor, share: float) -> tf.Tensor:
    """Replaces a share of the ids by some that nobody has seen."""
    new = tf.random.uniform(tf.shape(ids), maxval=tf.int64.max, dtype=tf.int64)
    return tf.where(tf.random.uniform(tf.shape(ids)) < share, new, ids)


def _one_or_all(inputs: Sequence[Any]) -> Any:
    return inputs[0] if len(inputs) == 1 else tuple(inputs)


def _arrays(task: Task, steps: int) -> dict[str, Any]:
    images, labels = data_of(task).batches()
    rows = np.arange(steps) % len(images)
    return {
        "x": images[rows].reshape(-1, *images.shape[2:]),
        "y": labels[rows].reshape(-1),
        "batch_size": task.batch_size,
    }


def _data(keras: Any, task: Task, strategy: Any, steps: int) -> dict[str, Any]:
    """Returns the arguments of `fit` for epochs of a number of steps."""
    if task.options.get("arrays"):
        return _arrays(task, steps)
    library = task.options["library"]
    if library == "tf_keras":
        creator = keras.utils.experimental.DatasetCreator
        data = creator(lambda _: _pipeline(task))
    elif library == "synchronous":
        data = strategy.distribute_datasets_from_function(lambda _: _pipeline(task))
    else:
        data = _pipeline(task)
    return {"x": data, "steps_per_epoch": steps}


def main() -> None:
    """Trains as peers.py asks."""
    task = Task.from_environment()
    if task.options["library"] == "tf_keras":
        import tf_keras as keras
    else:
        import keras
    control = Control(task)
    strategy = _strategy(task)
    with strategy.scope():
        model = _model(keras, task)
    waiting: list[dict[str, Any] | None] = []

    class AtRequest(keras.callbacks.Callback):
        """Answers one request per epoch, and waits for the next."""

        def __init__(self, steps: int) -> None:
            super().__init__()
            self._steps, self._started = steps, 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._started = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            control.send(seconds=time.perf_counter() - self._started)
            waiting.append(control.receive())
            if (waiting[-1] or {}).get("train") == self._steps:
                waiting.pop()
            else:
                self.model.stop_training = True

    control.send(pid=os.getpid())
    while (request := waiting.pop() if waiting else control.receive()) is not None:
        if steps := request.get("train"):
            data = _data(keras, task, strategy, steps)
            model.fit(**data, epochs=10**6, verbose=0, callbacks=[AtRequest(steps)])
        else:
            score = data_of(task).score(
                lambda *batch: model.predict(
                    _one_or_all(batch), batch_size=500, verbose=0
                )
            )
            count = int(model.optimizer.iterations)
            if task.options["library"] == "synchronous":
                # An update is a step of every worker.
                count *= len(task.workers)
            control.send(**score._asdict(), iterations=count)


if __name__ == "__main__":
    main()
