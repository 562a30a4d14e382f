"""Trains a table that grows, and kills the tasks named in the file `victims`.

Four steps in a row bring the same new ids, so that workers create the same rows at the same
time. Prints what became of the rows, and how many updates each had beyond those planned.
"""

import os
import signal
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from killing import process_of

import tfdist
from tfdist import _tf

EPOCHS, STEPS, BATCH, DIM = 2, 240, 8, 4
TOGETHER = 4  # Steps that bring the same new ids.
NEW, OLD = 24, 8  # Ids of an example: new ones, and such as earlier steps have met.
UPDATE = 2.0**-10
VICTIMS = Path("victims")
CHECKPOINTS = Path(os.environ["TFDIST_CHECKPOINT_DIR"], "fit-000")


def batches():
    """Returns the ids of all batches, of which each has an id once at most."""
    rng = np.random.default_rng(0)
    groups = STEPS // TOGETHER
    ids = rng.permutation(groups * BATCH * NEW) * 2**40 - 2**56
    new = ids.reshape(groups, BATCH * NEW)
    found = []
    for step in range(STEPS):
        group = step // TOGETHER
        before = new[:group] if group else ids[-1000:]
        old = rng.choice(before.ravel(), BATCH * OLD, replace=False)
        found.append(rng.permutation(np.concatenate([new[group], old])))
    return np.concatenate(found).reshape(-1, NEW + OLD)


def planned(x, in_a_round):
    """Returns all ids, how often each comes, and the sum of its squared gradients."""
    ids, places = np.unique(x, return_inverse=True)
    rounds = places.reshape(STEPS // in_a_round, -1)
    times = np.array([np.bincount(each, minlength=len(ids)) for each in rounds])
    return ids, EPOCHS * times.sum(0), EPOCHS * ((times / in_a_round) ** 2).sum(0)


def build(strategy):
    with strategy.scope():
        table = tfdist.embedding.DynamicEmbedding(
            DIM, max_rows=100_000, embeddings_initializer=keras.initializers.Constant(1)
        )
        model = keras.Sequential([keras.Input((NEW + OLD,), dtype="int64"), table])
        # The gradient of each row of a batch is 1, and accumulators are sums of squares.
        # Beside such an epsilon they are nothing: updates add up, in any order.
        optimizer = keras.optimizers.Adagrad(
            UPDATE * 2.0**20, initial_accumulator_value=1.0, epsilon=2.0**40
        )
        model.compile(optimizer, lambda _, y: BATCH * tf.reduce_sum(y, [1, 2]))
    return table, model


class Kill(keras.callbacks.Callback):
    """Kills one task after the other, once there is a checkpoint to go on from."""

    def on_train_batch_end(self, batch, logs=None):
        victims = VICTIMS.read_text().split()
        if batch % 40 != 39 or not victims or not any(CHECKPOINTS.glob("checkpoint*")):
            return
        job, index = victims[0].split(":")
        pid = process_of(job, int(index))
        if pid is not None:  # A worker may not be back yet.
            VICTIMS.write_text(" ".join(victims[1:]))
            os.kill(pid, signal.SIGKILL)


def main():
    strategy = tfdist.ParameterServerStrategy(checkpoint_interval=0.2)
    table, model = build(strategy)
    x = batches()
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(x, np.zeros(len(x)), callbacks=[Kill()], **options)

    is_in_rounds = isinstance(strategy.consistency, tfdist.Synchronous)
    in_a_round = strategy.num_workers if is_in_rounds else 1
    known, times, squares = planned(x, in_a_round)
    ids, rows = (np.concatenate(each) for each in zip(*table.export(1000), strict=True))
    order = np.argsort(ids)
    accumulators = _tf.value_of(model.optimizer._accumulators[0]).numpy()[order]
    gradients = (1 - rows[order]) / UPDATE * in_a_round
    beyond = gradients - times[:, None]
    numbers = [shard.in_use()[1].numpy() for shard in table.table.shards]
    print("planned", len(known))
    print("size", table.size())
    print("exported", len(ids) if set(ids) == set(known) else -1)
    print("numbers", sum(len(set(each)) for each in numbers))
    print("least", beyond.min())
    print("beyond", beyond[:, 0].sum(), flush=True)
    assert (beyond == beyond[:, :1]).all()
    is_as_planned = beyond[:, 0] == 0
    expected = np.repeat(1 + squares[:, None], DIM, axis=1)
    np.testing.assert_array_equal(accumulators[is_as_planned], expected[is_as_planned])


if __name__ == "__main__":
    main()
