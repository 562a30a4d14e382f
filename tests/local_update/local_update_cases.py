"""Cases for `LocalUpdateStrategy`, run on a cluster: see case_jobs.py.

    LOCAL_UPDATE='{"local_steps": 3}' python -m launch.local --num_ps=0 --num_workers=2 \
        tests/local_update/local_update_cases.py DIRECTORY CASE...
"""

import json
import os
import sys
from pathlib import Path

import case_jobs
import keras
import multi_worker_cases as synchronous
import numpy as np

CASES = {}
DIRECTORY = ""
INDEX = 0


def case(function):
    CASES[function.__name__] = function
    return function


def result(model, history=None, **more):
    found = {f"w{i}": a for i, a in enumerate(model.get_weights())}
    logs = {k: np.array(v) for k, v in (history.history if history else {}).items()}
    return {**found, **logs, "steps": int(model.optimizer.iterations.numpy()), **more}


def trained(strategy, optimizer=None, epochs=2, build=synchronous.dense):
    """Five batches of 8 rows: with three local steps, rounds do not end with epochs."""
    model = synchronous.compiled(strategy, build, optimizer)
    x, y = synchronous.data(40)
    options = {"batch_size": 8, "epochs": epochs, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, validation_data=(x, y), **options)
    predicted = model.predict(x, verbose=0)
    evaluated = np.array(model.evaluate(x, y, verbose=0))
    return result(model, history, predicted=predicted, evaluated=evaluated)


@case
def sgd(strategy):
    return trained(strategy)


@case
def adam(strategy):
    return trained(strategy, lambda: keras.optimizers.AdamW(0.01))


@case
def last_batch_of_one(strategy):
    """Worker 0 has no row of the last batch, and takes no step on it."""
    model = synchronous.compiled(strategy)
    x, y = synchronous.data(33)
    history = model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    return result(model, history)


@case
def generator(strategy):
    """Nobody knows how many batches there are."""
    x, y = synchronous.data(40)
    batches = ((x[i : i + 8], y[i : i + 8]) for i in range(0, 40, 8))
    model = synchronous.compiled(strategy, steps_per_execution=2)
    return result(model, model.fit(batches, verbose=0))


@case
def own_data(strategy):
    """Each worker has its own dataset; the error that it gets without a length."""
    import tensorflow as tf

    x, y = synchronous.data(40)
    rows = slice(20 * INDEX, 20 * INDEX + 20)
    dataset = tf.data.Dataset.from_tensor_slices((x[rows], y[rows])).batch(8)
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.OFF
    options.experimental_distribute.auto_shard_policy = policy
    model = synchronous.compiled(strategy)
    dataset = dataset.repeat().with_options(options)
    history = model.fit(dataset, steps_per_epoch=5, epochs=2, verbose=0)
    return result(model, history)


@case
def distributed(strategy):
    """The rows of `own_data`, and then those of `sgd`."""
    import tensorflow as tf

    slices = tf.data.Dataset.from_tensor_slices(synchronous.data(40))

    def own(context):
        index, size = context.input_pipeline_id, 40 // context.num_input_pipelines
        mine = slices.skip(size * index).take(size)
        return mine.batch(context.get_per_replica_batch_size(8)).repeat()

    model = synchronous.compiled(strategy)
    data = strategy.distribute_datasets_from_function(own)
    history = model.fit(data, steps_per_epoch=5, epochs=2, verbose=0)
    model_of_all = synchronous.compiled(strategy)
    data = strategy.experimental_distribute_dataset(slices.batch(8))
    model_of_all.fit(data, validation_data=data, epochs=2, verbose=0)
    return result(model, history, of_all=model_of_all.get_weights()[0])


def with_statistics():
    return synchronous.dense(keras.layers.BatchNormalization(momentum=0.5))


@case
def batch_norm(strategy):
    return trained(strategy, build=with_statistics)


@case
def callbacks(strategy):
    """All decide alike, the chief alone writes, and a backup is the chief's."""
    directory = Path(DIRECTORY, f"files-{INDEX}")
    directory.mkdir()
    model = synchronous.compiled(strategy)
    x, y = synchronous.data(40)
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=1e9, patience=1)
    files = keras.callbacks.ModelCheckpoint(str(directory / "{epoch}.keras"))
    backup = keras.callbacks.BackupAndRestore(str(directory / "backup"))
    options = {"batch_size": 8, "epochs": 5, "verbose": 0, "validation_data": (x, y)}
    history = model.fit(x, y, callbacks=[stop, files, backup], **options)
    model.save(directory / "model.keras")
    written = sorted(path.name for path in directory.iterdir())
    return result(model, history, files=written, epochs=len(history.epoch))


@case
def unequal_model(strategy):
    """Worker 1 has another activation."""
    kind = ["relu", "tanh"][min(INDEX, 1)]
    layer = keras.layers.Dense(3, activation=kind)
    model = synchronous.compiled(strategy, lambda: synchronous.dense(layer))
    x, y = synchronous.data(40)
    try:
        model.fit(x, y, batch_size=8, verbose=0)
    except ValueError as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {}


unequal_model.is_last = True


@case
def unequal_strategy(strategy):
    model = synchronous.compiled(strategy)
    try:
        model.fit(*synchronous.data(40), batch_size=8, verbose=0)
    except ValueError as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {}


unequal_strategy.is_last = True


def main(directory, *names):
    import tfdist

    global DIRECTORY, INDEX
    DIRECTORY = directory
    INDEX = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    options = json.loads(os.environ["LOCAL_UPDATE"])
    if "ring" in options:
        del options["ring"]
        options["mixing"] = tfdist.mixing.Gossip(tfdist.mixing.ring)
    if options.pop("differ", False):
        options["local_steps"] += INDEX
        options["outer"] = [0.1 * (1 + INDEX)]
    if "outer" in options:
        options["outer_optimizer"] = keras.optimizers.SGD(*options.pop("outer"))
    strategy = tfdist.LocalUpdateStrategy(**options, startup_timeout=200)
    case_jobs.run_cases(
        directory,
        names,
        CASES,
        strategy,
        INDEX,
        before=lambda: keras.utils.set_random_seed(INDEX + 1),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
