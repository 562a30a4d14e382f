"""What `tfdist.TensorBoard` writes of a cluster."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

from .test_default_driver import Local, X, Y, model_of


def written(directory):
    """The values of each tag of training, by epoch."""
    found = {}
    for path in (directory / "train").glob("events.out*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tf.make_ndarray(value.tensor))
                    found.setdefault(value.tag, {})[event.step] = number
    return found


def test_the_numbers_of_a_cluster_are_written_each_epoch(tmp_path):
    model = model_of(Local)
    strategy = model.distribute_strategy
    # Before and after each epoch: worker 1 is restarted in the second one, and away in
    # the third.
    steps = iter([(0, 5), (30, 10), (30, 10), (40, 4), (40, 4), None])

    def worker_report():
        if (now := next(steps)) is None:
            raise tf.errors.UnavailableError(None, None, "worker:1 is away")
        return SimpleNamespace(steps=now)

    def place(epoch):
        (tmp_path / "ck" / f"fit-{epoch:03d}" / "checkpoint-00000004").mkdir(
            parents=True
        )

    strategy.worker_report = worker_report
    strategy.placement_report = lambda: SimpleNamespace(bytes_per_ps=(7, 8))
    strategy.checkpoints = SimpleNamespace(directory=tmp_path / "ck")
    saves = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: place(epoch))
    board = tfdist.TensorBoard(tmp_path)
    model.fit(X, Y, epochs=3, verbose=0, callbacks=[saves, board])
    found = written(tmp_path)
    assert found["epoch_bytes_on_ps_1"] == {0: 8, 1: 8, 2: 8}
    assert found["epoch_checkpoints"] == {0: 5, 1: 10, 2: 15}
    workers = [found[f"epoch_steps_per_second_of_worker_{i}"] for i in range(2)]
    assert [{*each} for each in workers] == [{0, 1}, {0, 1}]
    ratios = [workers[0][epoch] / workers[1][epoch] for epoch in (0, 1)]
    assert ratios == pytest.approx([30 / 5, 10 / 4])
    assert np.all(np.array([*found["epoch_steps_per_second"].values()]) > 0)


def test_without_a_cluster_it_is_that_of_keras(tmp_path):
    model = model_of(Local)
    board = tfdist.TensorBoard(tmp_path, write_steps_per_second=False)
    model.fit(X, Y, verbose=0, callbacks=[board])
    assert {*written(tmp_path)} == {"epoch_loss", "epoch_learning_rate"}
