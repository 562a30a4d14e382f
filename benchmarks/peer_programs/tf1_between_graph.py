"""A ps or a worker of TensorFlow 1: between-graph replication, asynchronous."""

from typing import Any

import numpy as np
import tensorflow as tf
from peer_programs.control import Task, serve
from peer_programs.data import Data, initial_weights

tf1 = tf.compat.v1


def _logits(model: str, images: tf.Tensor) -> tf.Tensor:
    weights = [
        tf1.get_variable(f"weight{index}", initializer=weight)
        for index, weight in enumerate(initial_weights(model))
    ]
    hidden = images
    if model == "cnn":
        for kernel, bias in (weights[:2], weights[2:4]):
            hidden = tf1.nn.relu(tf1.nn.conv2d(hidden, kernel, padding="VALID") + bias)
            hidden = tf1.nn.max_pool2d(hidden, 2, 2, "VALID")
        hidden = tf.reshape(hidden, [-1, 1024])
        return hidden @ weights[4] + weights[5]
    return tf1.nn.relu(hidden @ weights[0] + weights[1]) @ weights[2] + weights[3]


class _StartInput(tf1.train.SessionRunHook):
    def __init__(self, iterator: Any, feeds: dict[Any, np.ndarray]) -> None:
        self._initializer, self._feeds = iterator.initializer, feeds

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initializer, self._feeds)


def main() -> None:
    """Serves, or trains as peers.py asks."""
    tf1.disable_v2_behavior()
    task = Task.from_environment()
    server = tf1.train.Server(
        {"ps": list(task.ps), "worker": list(task.workers)},
        job_name=task.job,
        task_index=task.index,
    )
    if task.job == "ps":
        server.join()
    worker = f"/job:worker/task:{task.index}"
    images, labels = Data(task).batches()
    with tf1.device(f"{worker}/cpu:0"):
        feeds = {
            tf1.placeholder(each.dtype, each.shape): each for each in (images, labels)
        }
        dataset = tf1.data.Dataset.from_tensor_slices(tuple(feeds)).repeat().prefetch(2)
        iterator = tf1.data.make_initializable_iterator(dataset)
        batch, batch_labels = iterator.get_next()
    with tf1.device(
        tf1.train.replica_device_setter(len(task.ps), worker_device=worker)
    ):
        step = tf1.train.get_or_create_global_step()
        asked = tf1.placeholder_with_default(batch, [None, *images.shape[2:]])
        logits = _logits(task.model, asked)
        loss = tf1.losses.sparse_softmax_cross_entropy(batch_labels, logits)
        optimizer = {
            "sgd": tf1.train.GradientDescentOptimizer,
            "adam": tf1.train.AdamOptimizer,
        }[task.optimizer](task.learning_rate, use_locking=True)
        update = optimizer.minimize(loss, step)
    session = tf1.train.MonitoredTrainingSession(
        server.target,
        is_chief=task.index == 0,
        hooks=[_StartInput(iterator, feeds)],
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    )

    def train(steps: int) -> None:
        for _ in range(steps):
            session.run((update, loss))

    serve(
        task,
        train,
        lambda batch: session.run(logits, {asked: batch}),
        count=lambda: int(session.run(step)),
    )


if __name__ == "__main__":
    main()
