"""Rows of a table that grows, looked up or updated in one process.

The table is that of tfdist, or of TensorFlow Recommenders Addons, which needs Keras 2.
"""

from typing import Any

import tensorflow as tf
from peer_programs.clicks import ROWS, TAGS, WIDTH
from peer_programs.control import Task, serve
from peer_programs.data import data_of


def _model(library: str, what: str, learning_rate: float) -> Any:
    """Returns a model that sums the rows of tags; only these are trained."""
    # Both draw first rows from -0.05 to 0.05.
    if library == "tfdist":
        import keras

        import tfdist

        table = tfdist.embedding.DynamicEmbedding(WIDTH, max_rows=ROWS)
    else:
        import tf_keras as keras
        from tensorflow_recommenders_addons import dynamic_embedding as de

        table = de.keras.layers.Embedding(
            WIDTH, initializer=keras.initializers.RandomUniform(), init_capacity=ROWS
        )
    optimizer = keras.optimizers.get("adagrad" if what == "adagrad" else "sgd")
    optimizer.learning_rate = learning_rate
    if library == "tfra":
        optimizer = de.DynamicEmbeddingOptimizer(optimizer)
    tags, layers = keras.Input((TAGS,), dtype="int64"), keras.layers
    total = layers.Dense(1, use_bias=False, kernel_initializer="ones", trainable=False)
    model = keras.Sequential([tags, table, layers.GlobalAveragePooling1D(), total])
    # A sum: otherwise the steps of rows would be the smaller, the larger the batch.
    loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")
    model.compile(optimizer, loss, steps_per_execution=100)
    return model


def main() -> None:
    """Looks rows up, or updates them, as growing.py asks."""
    task = Task.from_environment()
    library, what = task.options["contender"].split("-")
    model = _model(library, what, task.learning_rate)
    _, ids, labels = data_of(task).batches()
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).repeat().prefetch(2)

    def update(steps: int) -> None:
        model.fit(data, steps_per_epoch=steps, verbose=0)

    @tf.function
    def look_up(steps: int) -> tf.Tensor:
        total = 0.0
        for step in tf.range(steps):
            total += tf.reduce_sum(model.layers[0](tf.constant(ids)[step % len(ids)]))
        return total

    # Afterwards, every id has a row.
    update(len(ids))
    if (library, what) == ("tfra", "lookups"):
        from tensorflow_recommenders_addons import dynamic_embedding

        # Otherwise it makes ready for a gradient.
        dynamic_embedding.enable_inference_mode()
    train = look_up if what == "lookups" else update
    serve(task, train, lambda users, tags: model.predict(tags, verbose=0))


if __name__ == "__main__":
    main()
