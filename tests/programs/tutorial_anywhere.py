"""A program as TensorFlow's users write it, for whatever cluster and devices there are.

Its calls are those of TensorFlow's pages on several workers with Keras and with a loop of
one's own, on custom training, input, and saving. With `resolver` as argument, workers are
told by a resolver; else `tfdist.strategy()` chooses.
"""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

EPOCHS, STEPS, BATCH = 2, 5, 8


def workers_by_resolver():
    config = json.loads(os.environ["TF_CONFIG"])
    resolver = tfdist.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(config["cluster"]),
        task_type=config["task"]["type"],
        task_id=config["task"]["index"],
        rpc_layer="grpc",
    )
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1 << 20)
    return tfdist.MultiWorkerMirroredStrategy(resolver, options)


keras.utils.set_random_seed(1)
strategy = workers_by_resolver() if sys.argv[1:] == ["resolver"] else tfdist.strategy()
directory = Path("tutorial")
ROWS = np.random.default_rng(0).normal(size=(STEPS * BATCH, 3)).astype("float32")
TARGETS = ROWS @ np.float32([[1], [2], [3]])


def dataset_fn(context):
    data = tf.data.Dataset.from_tensor_slices((ROWS, TARGETS)).repeat()
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.batch(context.get_per_replica_batch_size(BATCH)).prefetch(2)


def build():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def train_by_a_loop():
    with strategy.scope():
        model, optimizer = build(), keras.optimizers.SGD(0.05)
        loss_object = keras.losses.MeanSquaredError(reduction=None)
        error = keras.metrics.MeanAbsoluteError("train_error")
    epoch = tf.Variable(tf.constant(0, tf.int64), name="epoch")

    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = tf.nn.compute_average_loss(
                loss_object(y, predictions), global_batch_size=BATCH
            )
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        error.update_state(y, predictions)
        return loss

    @tf.function
    def train_step(iterator):
        losses = strategy.run(step_fn, args=(next(iterator),))
        return strategy.reduce(tfdist.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def train_epoch(data):
        total = 0.0
        for batch in data:
            losses = strategy.run(step_fn, args=(batch,))
            total += strategy.reduce(tfdist.ReduceOp.SUM, losses, axis=None)
        return total

    own = directory if strategy.is_chief else directory / f"temp_{os.getpid()}"
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, epoch=epoch), own / "ckpt", max_to_keep=1
    )
    assert manager.latest_checkpoint is None
    totals = []
    for _ in range(EPOCHS):
        iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
        totals.append(sum(float(train_step(iterator)) for _ in range(STEPS)))
        epoch.assign_add(1)
        manager.save()
        error.reset_state()
    slices = tf.data.Dataset.from_tensor_slices((ROWS, TARGETS)).batch(BATCH)
    distributed = strategy.experimental_distribute_dataset(slices)
    assert distributed.element_spec
    totals.append(float(train_epoch(distributed)))
    assert totals == sorted(totals, reverse=True), totals
    strategy.barrier()
    with strategy.scope():
        again = build()
    checkpoint = tf.train.Checkpoint(model=again, epoch=epoch)
    checkpoint.restore(tf.train.latest_checkpoint(directory / "ckpt"))
    assert int(epoch) == EPOCHS
    return totals


def train_by_keras():
    with strategy.scope():
        model = build()
    data = strategy.distribute_datasets_from_function(dataset_fn)
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{directory}/{{epoch}}.keras"),
        keras.callbacks.TensorBoard(f"{directory}/logs"),
    ]
    given = {"steps_per_epoch": STEPS, "verbose": 0, "callbacks": callbacks}
    losses = model.fit(data, epochs=EPOCHS, **given).history["loss"]
    model.save(directory / "model.keras")
    strategy.barrier()
    with strategy.scope():
        again = keras.models.load_model(directory / "model.keras")
    plain = keras.models.load_model(directory / "model.keras")
    for each in (again, plain):
        for one, other in zip(each.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    again.fit(data, epochs=1, **{**given, "callbacks": []})
    predictions = model.predict(ROWS, batch_size=BATCH, verbose=0)
    np.testing.assert_allclose(predictions, plain(ROWS), rtol=1e-5, atol=1e-6)
    return losses


losses = train_by_keras()
print("fit", type(strategy).__name__, *losses)
if not isinstance(strategy, tfdist.ParameterServerStrategy):
    print("loop", *train_by_a_loop())
