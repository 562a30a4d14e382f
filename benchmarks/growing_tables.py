"""Memory and checkpoints of a table that grows, beside one of a fixed number of rows.

Both are trained by Adagrad on 2 ps and 2 workers, which this process starts; it is their
chief.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf
from turns import in_turn

import launch
import tfdist

NUM_PS, NUM_WORKERS, WIDTH = 2, 2, 16
_BATCH = 4096
# Rows that are there before memory is read for the first time: by then, the ps have their
# threads and their buffers for messages.
_EARLIER_ROWS = 100_000


class Trained:
    """A model of one table.

    Args:
        strategy: Where it trains.
        table: Makes the table.
    """

    def __init__(self, strategy: Any, table: Callable[[], keras.layers.Layer]) -> None:
        with strategy.scope():
            self.table = table()
            self.model = keras.Sequential(
                [keras.Input((1,), dtype="int64"), self.table]
            )
            self.model.compile(
                keras.optimizers.Adagrad(0.01),
                lambda y, rows: tf.reduce_sum(rows, axis=[1, 2]),
                steps_per_execution=10,
            )
        self.checkpoint = tf.train.Checkpoint(model=self.model)

    def train(self, ids: np.ndarray) -> None:
        """Trains on each id once."""
        self.model.fit(
            ids[:, np.newaxis], np.zeros(len(ids)), batch_size=_BATCH, verbose=0
        )


def growing(strategy: Any, max_rows: int) -> Trained:
    """Returns a model of a table that grows."""
    return Trained(
        strategy,
        lambda: tfdist.embedding.DynamicEmbedding(WIDTH, max_rows=2 * max_rows),
    )


def memory(rows: int, parts: int = 4) -> dict[str, Any]:
    """Creates rows in a cluster of its own; returns the bytes that these took.

    Args:
        rows: How many training creates.
        parts: How often memory is read meanwhile.
    """
    random = np.random.default_rng(0)
    with cluster() as (strategy, resident):
        trained = growing(strategy, rows + _EARLIER_ROWS)
        trained.train(_some_ids(random, _EARLIER_ROWS))
        before, size = resident(), trained.table.size()
        read = []
        for _ in range(parts):
            trained.train(_some_ids(random, rows // parts))
            created = trained.table.size() - size
            read.append({"rows": created, "resident": resident() - before})
    return {"width": WIDTH, "slots": 1, "read": read}


def checkpoints(rows: int, rounds: int) -> dict[str, Any]:
    """Saves and restores both tables in turns.

    Returns:
        How many `rows` there are, and of each table, by its name, its turns: the seconds
        to `save` and to `restore`, and the `bytes` of the files.
    """
    with cluster() as (strategy, _), tempfile.TemporaryDirectory() as folder:
        tables = {
            "growing": growing(strategy, rows),
            "static": Trained(
                strategy, lambda: tfdist.embedding.Embedding(rows, WIDTH)
            ),
        }
        random = np.random.default_rng(0)
        tables["growing"].train(_some_ids(random, rows))
        # It has all rows from the start, and gets its slots in the first step.
        tables["static"].train(np.arange(_BATCH))
        found: dict[str, Any] = {"rows": tables["growing"].table.size()}
        # The first time, what saves and restores is traced.
        for index in range(-1, rounds):
            for name in in_turn(list(tables), index):
                turn = _save_and_restore(tables[name].checkpoint, Path(folder))
                if index >= 0:
                    found.setdefault(name, []).append(turn)
    return found


def _save_and_restore(checkpoint: tf.train.Checkpoint, folder: Path) -> dict[str, Any]:
    path = str(folder / "checkpoint")
    save = _seconds(lambda: checkpoint.write(path))
    restore = _seconds(lambda: checkpoint.read(path))
    files = list(folder.iterdir())
    size = sum(each.stat().st_size for each in files)
    for each in files:
        each.unlink()
    return {"save": save, "restore": restore, "bytes": size}


@contextlib.contextmanager
def cluster(
    num_ps: int = NUM_PS, num_workers: int = NUM_WORKERS
) -> Iterator[tuple[Any, Callable[[], int]]]:
    """Yields a strategy, and what returns the resident bytes of its ps."""
    with launch.servers(num_ps, num_workers) as servers:
        os.environ["TF_CONFIG"] = servers.tf_config.to_json()
        every = [
            psutil.Process(pid) for task, pid in servers.pids.items() if "ps" in task
        ]
        yield (
            tfdist.ParameterServerStrategy(),
            lambda: sum(each.memory_info().rss for each in every),
        )


def _some_ids(random: np.random.Generator, count: int) -> np.ndarray:
    return random.integers(0, np.iinfo(np.int64).max, count)


def _seconds(do: Callable[[], Any]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start
