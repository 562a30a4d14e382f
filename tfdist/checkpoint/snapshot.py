"""The state of a `fit` that a checkpoint holds besides the variables."""

import io
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_STATE, _ARRAYS, _DATA, _ROWS = "state.json", "arrays.npz", "data", "put_back.npz"


@dataclass(frozen=True)
class Position:
    """The position of a `fit`: all steps before it have finished.

    `step` is the next one in the epoch. `batches` is how many batches were read since
    the iteration of the dataset began, `batches_before` of them in earlier epochs.
    """

    epoch: int
    step: int = 0
    batches: int = 0
    batches_before: int = 0


@dataclass(frozen=True)
class Snapshot:
    """The state of a `fit` in the chief's memory, as a checkpoint holds it.

    `data` is the position of the dataset's iterator, of variants; None if the dataset
    cannot save one. `put_back` has the batches that were read, but whose steps have not
    run: a matrix of `bytes`, whose rows are leases or made by
    `parameter_server.feed.sources.ChiefBatches`. `data_size` counts the dataset's batches,
    negative if that is not known; `data_files` tells whether its files have changed.
    `seed` is that of the data's order, where the strategy has chosen it; `iterations`
    counts those over the data before this one.
    """

    position: Position
    epochs: int
    finished: bool
    callbacks: list[keras.callbacks.Callback]
    variables: list[Any]
    arrays: dict[str, Any] = field(default_factory=dict)
    data: tf.Tensor | None = None
    put_back: np.ndarray | None = None
    is_by_lease: bool = False
    data_size: int = -1
    data_files: str = ""
    seed: int = 0
    iterations: int = 0

    def write(self, path: Path, write_data: "DataWriter") -> None:
        """Writes the snapshot to the directory of a checkpoint.

        `write_data` must have been created while every task of the cluster responded.
        """
        # Binary data goes to files that need no encoding; `position` is converted below.
        beside = {"arrays", "data", "position", "put_back"}
        state = {k: v for k, v in vars(self).items() if k not in beside}
        state["position"] = asdict(self.position)
        (path / _STATE).write_text(json.dumps(state))
        np.savez(path / _ARRAYS, **self.arrays)
        if self.data is not None:
            write_data(str(path / _DATA), self.data)
        if self.put_back is not None:
            np.savez(path / _ROWS, **_packed(self.put_back))

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """Reads a snapshot that `write` has written.

        Raises OSError, ValueError or tf.errors.OpError if a file is unreadable.
        """
        found = cls.unpacked(cls.packed(path))
        state = vars(found).copy()
        if (path / f"{_DATA}.index").exists():
            [state["data"]] = tf.raw_ops.RestoreV2(
                prefix=str(path / _DATA),
                tensor_names=[_DATA],
                shape_and_slices=[""],
                dtypes=[tf.variant],
            )
        if (path / _ROWS).exists():
            with np.load(path / _ROWS, allow_pickle=False) as packed:
                state["put_back"] = _unpacked(**packed)
        return cls(**state)

    @staticmethod
    def packed(path: Path) -> bytes:
        """Returns the bytes that `write` has written, without the dataset's state."""
        state, arrays = (path / each for each in (_STATE, _ARRAYS))
        return b"\n".join([state.read_bytes(), arrays.read_bytes()])

    @classmethod
    def unpacked(cls, packed: bytes) -> "Snapshot":
        """Returns the snapshot that `packed` has packed, without the dataset's state."""
        # `json.dumps` has written no newline, so the first one ends the text.
        text, _, rest = packed.partition(b"\n")
        state = json.loads(text)
        state["position"] = Position(**state["position"])
        # Unpickling would run code from a file that may come from anyone.
        with np.load(io.BytesIO(rest), allow_pickle=False) as arrays:
            state["arrays"] = dict(arrays)
        return cls(**state)


class DataWriter:
    """Writes the position of a dataset's iterator, by a function traced once.

    TensorFlow registers every new function with all tasks, and waits for a task that
    does not respond. So the function is traced before it is needed.
    """

    def __init__(self) -> None:
        self._write = tf.function(self._save, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.string), tf.TensorSpec(None, tf.variant)
        )

    @staticmethod
    def _save(prefix: tf.Tensor, data: tf.Tensor) -> None:
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=[_DATA], shape_and_slices=[""], tensors=[data]
        )

    def __call__(self, prefix: str, data: tf.Tensor) -> None:
        """Writes to files whose names begin with `prefix`."""
        self._write(tf.constant(prefix), data)


def _packed(matrix: np.ndarray) -> dict[str, Any]:
    r"""Returns a matrix of `bytes` as arrays that need no pickle.

    >>> matrix = np.array([[b"a\0", b""], [b"\0", b"bc"]], object)
    >>> _unpacked(**_packed(matrix)).tolist()
    [[b'a\x00', b''], [b'\x00', b'bc']]
    """
    # A NumPy array of dtype `S` would drop trailing null bytes.
    lengths = [[len(each) for each in row] for row in matrix]
    joined = b"".join(matrix.ravel())
    return {
        "lengths": np.asarray(lengths, np.int64),
        "joined": np.frombuffer(joined, np.uint8),
    }


def _unpacked(lengths: np.ndarray, joined: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lengths)
    parts = [joined[end - n : end] for end, n in zip(ends, lengths.flat, strict=True)]
    # `np.array` would choose the dtype `S`, which drops trailing null bytes.
    flat = np.empty(len(parts), object)
    flat[:] = [part.tobytes() for part in parts]
    return flat.reshape(lengths.shape)
