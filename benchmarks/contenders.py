"""Ways to train a Keras model on parameter servers; each process runs one.

All of them do the same work per step: forward, backward, an update by Adam, and the
metrics loss and accuracy, from shuffled examples in memory. They differ in:

| contender    | input                          | a repeat is                        |
| ------------ | ------------------------------ | ---------------------------------- |
| `fit`        | an endless `tf.data`, which    | an epoch in the middle of one `fit`|
|              | tfdist lets each worker read   |                                    |
| `fit_arrays` | NumPy arrays, read by the      | an epoch in the middle of one `fit`|
|              | chief and sent with each step  |                                    |
| `tf_keras`   | the same `tf.data`, by a       | an epoch in the middle of one `fit`|
|              | `DatasetCreator`, on each      |                                    |
|              | worker                         |                                    |
| `loop`       | the same `tf.data`, as a       | scheduling the steps, and a join   |
|              | per-worker dataset             |                                    |

So `fit`, `tf_keras` and `loop` compare like with like. `fit_arrays` does more: no other
contender sends examples over the network, or uses each exactly once per epoch.

`fit` and `tf_keras` compute the value of the metrics after every few steps, as Keras
does; `loop` computes it once at the end, as a hand-written loop would. `tf_keras` and `loop` use
TensorFlow's own strategy, under which the Keras 3 optimizer of `loop` loses updates.
"""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import tensorflow as tf
from workload import Workload

import tf_config


class Pace:
    """The chief's side of a repeat: begin on request, and report the end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._started = 0.0

    def begin(self) -> None:
        """Waits for the request to begin, without using the CPU."""
        self._connection.recv()
        self._started = time.perf_counter()

    def end(self, optimizer: Any, strategy: Any) -> None:
        """Reports the seconds since `begin`, and what was counted so far."""
        seconds = time.perf_counter() - self._started
        counted = None
        if hasattr(strategy, "worker_report"):
            counted = sum(strategy.worker_report().steps)
        self._connection.send((seconds, int(optimizer.iterations), counted))


def serve(name: str, config: tf_config.TFConfig, connection: Connection) -> None:
    """Runs incoming workloads one after the other, until None arrives."""
    make_strategy, train = CONTENDERS[name]
    strategy = make_strategy(config)
    connection.send("connected")
    while (workload := connection.recv()) is not None:
        train(strategy, workload, Pace(connection))


def _our_strategy(config: tf_config.TFConfig) -> tf.distribute.Strategy:
    import tfdist

    return tfdist.ParameterServerStrategy(config)


def _tensorflows_strategy(config: tf_config.TFConfig) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(config.cluster.cluster_spec()),
        task_type="chief",
        task_id=0,
        rpc_layer="grpc",
    )
    return tf.distribute.ParameterServerStrategy(resolver)


def _pipeline(workload: Workload) -> tf.data.Dataset:
    images, labels = workload.examples()
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(len(labels)).repeat()
    dataset = dataset.batch(workload.batch_size, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


def _compiled(workload: Workload, keras: Any) -> Any:
    model = workload.build(keras)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=workload.steps_per_execution,
    )
    return model


def _keras_3(strategy: Any, workload: Workload, pace: Pace, **data: Any) -> None:
    import keras

    class AtPace(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            pace.begin()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            pace.end(self.model.optimizer, strategy)

    with strategy.scope():
        model = _compiled(workload, keras)
    epochs = 1 + workload.repeats
    model.fit(**data, epochs=epochs, verbose=0, callbacks=[AtPace()])


def _fit(strategy: Any, workload: Workload, pace: Pace) -> None:
    data, steps = _pipeline(workload), workload.steps
    _keras_3(strategy, workload, pace, x=data, steps_per_epoch=steps, shuffle=False)


def _fit_arrays(strategy: Any, workload: Workload, pace: Pace) -> None:
    images, labels = workload.epoch()
    _keras_3(
        strategy, workload, pace, x=images, y=labels, batch_size=workload.batch_size
    )


def _tf_keras(strategy: Any, workload: Workload, pace: Pace) -> None:
    import tf_keras

    class AtPace(tf_keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            pace.begin()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            pace.end(self.model.optimizer, strategy)

    with strategy.scope():
        model = _compiled(workload, tf_keras)
    model.fit(
        tf_keras.utils.experimental.DatasetCreator(lambda _: _pipeline(workload)),
        steps_per_epoch=workload.steps,
        epochs=1 + workload.repeats,
        verbose=0,
        callbacks=[AtPace()],
    )


def _loop(strategy: Any, workload: Workload, pace: Pace) -> None:
    import keras

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = workload.build(keras)
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        loss_metric = keras.metrics.Mean()
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_fn(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        loss_metric.update_state(loss, sample_weight=tf.shape(labels)[0])
        accuracy.update_state(labels, logits)

    @tf.function
    def steps(batches: Any) -> None:
        if workload.steps_per_execution == 1:
            strategy.run(step, args=next(batches))
        else:
            for _ in tf.range(workload.steps_per_execution):
                strategy.run(step, args=next(batches))

    @tf.function
    def dataset() -> Any:
        return strategy.distribute_datasets_from_function(lambda _: _pipeline(workload))

    batches = iter(coordinator.create_per_worker_dataset(dataset))
    for _ in range(1 + workload.repeats):
        pace.begin()
        loss_metric.reset_state()
        accuracy.reset_state()
        for _ in range(workload.steps // workload.steps_per_execution):
            coordinator.schedule(steps, args=(batches,))
        coordinator.join()
        float(loss_metric.result()), float(accuracy.result())
        pace.end(optimizer, strategy)


CONTENDERS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "fit": (_our_strategy, _fit),
    "fit_arrays": (_our_strategy, _fit_arrays),
    "tf_keras": (_tensorflows_strategy, _tf_keras),
    "loop": (_tensorflows_strategy, _loop),
}
