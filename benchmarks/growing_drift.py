"""How well clicks are predicted on ids that come and go, by tables of equal bytes.

Each id has a quality of its own. A chunk of a log is predicted before it is trained on;
then some ids are gone for good, and as many new ones have their frequencies.
"""

import functools
from typing import Any

import keras
import numpy as np
from growing_tables import WIDTH, cluster

import tfdist

_CHUNKS, _EXAMPLES, _BATCH = 20, 51_200, 2048
# How many ids live at a time, and how many of them are replaced after each chunk.
_LIVE, _NEW = 20_000, 1_000
# The bytes of a row and Adagrad's slots, and what it takes beside them in a table that
# grows and notes how often it was looked up (docs/dynamic-tables.md, "Memory").
_VALUES, _BESIDE = 2 * 4 * WIDTH, 78
_MAX_ROWS = 6_000
_BYTES = _MAX_ROWS * (_VALUES + _BESIDE)
_ROWS = _BYTES // _VALUES


def drift(seed: int) -> dict[str, Any]:
    """Trains all contenders on one log.

    Returns:
        Of each contender its `auc` in every chunk and its `rows`; and how large logs are.
    """
    ids, logits, clicks = _log(seed)
    first, count = np.unique(ids[0], return_counts=True)
    # One row is that of all other ids.
    frequent = first[np.argsort(-count)][: _ROWS - 1]
    static = functools.partial(tfdist.embedding.Embedding, _ROWS, WIDTH)
    growing = functools.partial(
        tfdist.embedding.DynamicEmbedding,
        WIDTH,
        max_rows=_MAX_ROWS,
        admission=tfdist.embedding.ProbabilityFilter(0.5),
        eviction=tfdist.embedding.EvictRare(count=2, decay=0.5),
    )
    # What has a table of its own in this process is not there once this has a cluster.
    numbered = keras.layers.IntegerLookup(vocabulary=frequent)(ids)
    contenders: dict[str, tuple[Any, Any]] = {
        "growing": (growing, ids),
        "hashing": (static, np.asarray(keras.layers.Hashing(_ROWS)(ids))),
        "vocabulary": (static, np.asarray(numbered)),
    }
    found: dict[str, Any] = {"auc": {}, "rows": {}}
    # Rows that were given up are used again on a ps, and not in one process.
    with cluster(1, 1) as (strategy, _):
        for name, (table, numbers) in contenders.items():
            with strategy.scope():
                model = _model(table())
            found["auc"][name] = _aucs(model, numbers, clicks)
            found["rows"][name] = getattr(model.layers[0], "max_rows", _ROWS)
    known = zip(clicks, logits, strict=True)
    found["auc"]["known"] = [float(_auc()(*each)) for each in known]
    sizes = {"live": _LIVE, "new": _NEW, "examples": _EXAMPLES, "bytes": _BYTES}
    return {**found, **sizes, "chunks": _CHUNKS}


def _log(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws ids, what decides about clicks, and these: `[chunks, examples]`, by time."""
    random = np.random.default_rng(seed)
    # Frequencies of the ids that live are as 1, 1/2, 1/3...
    total = np.cumsum(1 / np.arange(1.0, _LIVE + 1))
    live, chunks = np.arange(_LIVE), []
    for chunk in range(_CHUNKS):
        ranks = np.searchsorted(total, random.uniform(0, total[-1], _EXAMPLES))
        chunks.append(live[ranks])
        born = _LIVE + chunk * _NEW
        live[random.permutation(_LIVE)[:_NEW]] = np.arange(born, born + _NEW)
    numbers = np.stack(chunks)
    ids = random.integers(0, np.iinfo(np.int64).max, live.max() + 1)[numbers]
    logits = random.normal(-1, 1.5, live.max() + 1)[numbers]
    return ids, logits, np.float32(random.logistic(size=ids.shape) < logits)


def _model(table: keras.layers.Layer) -> keras.Model:
    layers = [keras.Input((), dtype="int64"), table, keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    # A sum: otherwise the steps of rows would be the smaller, the larger the batch.
    loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")
    optimizer = keras.optimizers.Adagrad(0.1)
    model.compile(optimizer, loss, metrics=[_auc()], steps_per_execution=5)
    return model


def _auc() -> keras.metrics.AUC:
    return keras.metrics.AUC(num_thresholds=1000, from_logits=True)


def _aucs(model: keras.Model, ids: np.ndarray, clicks: np.ndarray) -> list[float]:
    """Returns the AUC of each chunk, before the model is trained on it."""
    aucs = []
    for x, y in zip(ids, clicks, strict=True):
        aucs.append(model.evaluate(x, y, batch_size=5 * _BATCH, verbose=0)[1])
        model.fit(x, y, batch_size=_BATCH, shuffle=False, verbose=0)
        if isinstance(model.layers[0], tfdist.embedding.DynamicEmbedding):
            model.layers[0].evict()
    return aucs
