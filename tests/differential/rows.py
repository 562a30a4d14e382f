"""The rows that a program trains on, in each way that Keras takes them."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .programs import Program

FEATURES, LENGTH, PIXELS, CLASSES = 6, 5, 6, 3
VOCABULARY = 600

LINEAR = {"sgd", "momentum", "nesterov", "scheduled", "averaged", "decayed"}
"""The optimizers to which it is the same whether gradients come summed or one by one."""


def arrays_of(program: Program) -> tuple[Any, ...]:
    """Returns the inputs, the targets and, if the program has them, the weights."""
    rng = np.random.default_rng(program.seed)
    n = program.rows
    vector = rng.normal(size=(n, FEATURES)).astype("float32")
    sequence = rng.normal(size=(n, LENGTH, FEATURES)).astype("float32")
    ids = _ids(program, rng)
    image = rng.normal(size=(n, PIXELS, PIXELS, 2)).astype("float32")
    x = {
        "vector": vector,
        "two": {"left": vector, "right": ids},
        "sequence": sequence,
        "ids": ids,
        "masked_ids": ids,
        "image": image,
    }[program.inputs]
    score = rng.normal(size=(n, 1)).astype("float32")
    classes = rng.integers(0, CLASSES, size=n).astype("int32")
    y = {
        "regression": score,
        "classes": classes,
        "binary": (score > 0).astype("float32"),
        "two_outputs": {"score": score, "kind": classes},
    }[program.head]
    weights = rng.uniform(0.5, 2.0, size=n).astype("float32")
    return (
        (x, y, weights)
        if program.weighted and program.head != "two_outputs"
        else (x, y)
    )


def _ids(program: Program, rng: np.random.Generator) -> np.ndarray:
    """Returns ids, of which 0 may be masked: see docs/embeddings.md on repeated ones."""
    shape = (program.rows, LENGTH)
    if program.optimizer in LINEAR and program.step != "clipped":
        ids = rng.integers(0, 12, size=shape)
        ids[:, 0] = np.maximum(ids[:, 0], 1)  # Something of each row is not masked.
    else:
        ids = 1 + rng.permutation(VOCABULARY - 1)[: program.rows * LENGTH].reshape(
            shape
        )
    return ids.astype("int32")


class Batches(keras.utils.PyDataset):
    """Batches by their index; may shuffle its rows at the end of each epoch."""

    def __init__(self, arrays: Any, batch: int, shuffles: bool, **options: Any) -> None:
        super().__init__(**options)
        self._arrays, self._batch, self._shuffles = arrays, batch, shuffles
        self._order = np.arange(len(keras.tree.flatten(arrays)[0]))
        self._rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return -(-len(self._order) // self._batch)

    def __getitem__(self, index: int) -> Any:
        rows = self._order[index * self._batch :][: self._batch]
        return keras.tree.map_structure(lambda each: each[rows], self._arrays)

    def on_epoch_end(self) -> None:
        if self._shuffles:
            self._rng.shuffle(self._order)


def fit_arguments(program: Program) -> dict[str, Any]:
    """Returns the arguments of `fit` that say what to train on."""
    arrays, batch = arrays_of(program), program.batch
    if program.data.endswith("numpy"):
        given = dict(zip(("x", "y", "sample_weight"), arrays, strict=False))
        return {**given, "batch_size": batch, "shuffle": program.data != "numpy"}
    if program.data == "py_dataset_of_threads":
        # Keras's threads would draw an order while a trace draws seeds of the same stream.
        return {"x": Batches(arrays, batch, True, workers=2), "shuffle": False}
    if program.data.endswith("py_dataset"):
        return {"x": Batches(arrays, batch, program.data != "py_dataset")}
    if program.data == "generator":
        return {"x": _endless(arrays, batch), "steps_per_epoch": program.rows // batch}
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if program.data == "shuffled":
        dataset = dataset.shuffle(program.rows, seed=program.seed)
    dataset = dataset.batch(batch, drop_remainder=program.data == "full_batches")
    if program.data == "unknown_length":
        dataset = dataset.filter(lambda *_: True)
    return {"x": dataset}


def _endless(arrays: Any, batch: int) -> Iterator[Any]:
    batches = Batches(arrays, batch, shuffles=False)
    while True:
        for index in range(len(batches)):
            yield batches[index]
