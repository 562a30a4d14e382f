"""A worker of MXNet's `dist_async` key-value store, which is ps-lite."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from peer_programs.control import Task, serve
from peer_programs.data import Data, initial_weights


def _network(model: str) -> gluon.nn.HybridSequential:
    network = gluon.nn.HybridSequential()
    if model == "mlp":
        network.add(gluon.nn.Dense(256, activation="relu", in_units=784))
        network.add(gluon.nn.Dense(10, in_units=256))
    else:
        for before, after in ((1, 32), (32, 64)):
            network.add(
                gluon.nn.Conv2D(after, 5, activation="relu", in_channels=before)
            )
            network.add(gluon.nn.MaxPool2D())
        network.add(gluon.nn.Flatten(), gluon.nn.Dense(10, in_units=1024))
    network.initialize()
    for parameter, weight in zip(
        network.collect_params().values(), initial_weights(model), strict=True
    ):
        # MXNet's kernels have their outputs and inputs first.
        axes = (3, 2, 0, 1) if weight.ndim == 4 else None
        parameter.set_data(mx.nd.array(weight.transpose(axes)))
    network.hybridize(static_alloc=True, static_shape=True)
    return network


def _channels_first(images: np.ndarray) -> np.ndarray:
    return images if images.ndim == 2 else images.transpose(0, 3, 1, 2)


def main() -> None:
    """Trains as peers.py asks."""
    task = Task.from_environment()
    network = _network(task.model)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    loss_fn.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(
        network.collect_params(),
        task.optimizer,
        {"learning_rate": task.learning_rate, "wd": 0.0},
        kvstore=mx.kv.create("dist_async"),
        update_on_kvstore=True,
    )
    every = zip(*Data(task).batches(), strict=True)
    batches = [
        (mx.nd.array(_channels_first(images)), mx.nd.array(labels))
        for images, labels in every
    ]
    done = 0

    def train(steps: int) -> None:
        nonlocal done
        total = mx.nd.zeros((1,))
        for step in range(done, done + steps):
            images, labels = batches[step % len(batches)]
            with autograd.record():
                loss = loss_fn(network(images), labels)
            loss.backward()
            trainer.step(len(labels))
            total += loss.mean()
        done += steps
        total.asscalar()
        mx.nd.waitall()

    def predict(images: np.ndarray) -> np.ndarray:
        return network(mx.nd.array(_channels_first(images))).asnumpy()

    serve(task, train, predict)


if __name__ == "__main__":
    main()
