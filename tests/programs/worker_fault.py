"""A worker that fails as it is told: FAULT INDEX_OF_THE_VICTIM."""

import json
import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

fault, victim = sys.argv[1], int(sys.argv[2])
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
if fault == "devices" and index == victim:
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
if fault == "too_late":
    metric = keras.metrics.Mean(name="early")
strategy = tfdist.MultiWorkerMirroredStrategy(
    startup_timeout=10.0 if fault == "missing" else 200.0,
    # On a busy machine, one that answers may take seconds.
    peer_timeout=15.0 if fault == "SIGSTOP" else 60.0,
)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")


class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5 and index == victim:
            os.kill(os.getpid(), getattr(signal, fault))


x = np.ones((4000, 4), "float32")
if fault == "lone_call":
    if index == victim:
        model.predict(x, verbose=0)
    model.evaluate(x, x[:, :1], verbose=0)
if fault == "lone_begin":
    test = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: model.test_on_batch(x[:8], x[:8, :1])
    )
    model.fit(x, x[:, :1], verbose=0, callbacks=[test] if index == victim else [])
if fault == "lone_rate":
    optimizer = model.optimizer

    def set_rate(*_, **logs):
        optimizer.learning_rate = 0.5

    # The third harms nobody: the next `fit` begins as the chief.
    for hook, epochs in [
        ("on_epoch_end", 2),
        ("on_train_batch_end", 1),
        ("on_epoch_end", 1),
    ]:
        optimizer.learning_rate = 0.01
        alone = keras.callbacks.LambdaCallback(**{hook: set_rate})
        callbacks = [alone] if index == victim else []
        try:
            fit = {"epochs": epochs, "batch_size": 8, "verbose": 0}
            model.fit(x[:64], x[:64, :1], callbacks=callbacks, **fit)
            print("SAID no error", file=sys.stderr)
        except ValueError as error:
            print(f"SAID {type(error).__name__}: {error}", file=sys.stderr)
    sys.exit()
if fault == "lone_stop":

    def stop(epoch, logs):
        model.stop_training = True

    def restore(logs):
        model.set_weights([np.full_like(each, 7.0) for each in model.get_weights()])

    def predict(batch, logs):
        model.predict(x[:8], verbose=0)

    for hooks in (
        {"on_epoch_end": stop, "on_train_end": restore},
        {"on_train_batch_end": predict},
    ):
        alone = keras.callbacks.LambdaCallback(**hooks)
        callbacks = [alone] if index == victim else []
        try:
            fit = {"epochs": 3, "batch_size": 8, "verbose": 0}
            history = model.fit(x[:64], x[:64, :1], callbacks=callbacks, **fit)
            values = {float(each) for each in np.ravel(model.get_weights()[0])}
            print(f"SAID {len(history.epoch)} epoch, {values}", file=sys.stderr)
        except tfdist.errors.LoneCallError as error:
            print(f"SAID {type(error).__name__}: {error}", file=sys.stderr)
    sys.exit()
model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=[Fault()])
