"""All that a checkpoint of a `fit` holds beside its variables."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

_STATE, _ARRAYS, _DATA = "state.json", "arrays.npz", "data"


@dataclass(frozen=True)
class Position:
    """How far a `fit` is: all steps before this position have finished.

    Attributes:
        epoch: The epoch, counted from 0.
        step: The next step in it.
        batches: How many batches its dataset has given since its iteration began.
        batches_before: How many of them it gave to earlier epochs.
    """

    epoch: int
    step: int = 0
    batches: int = 0
    batches_before: int = 0


@dataclass(frozen=True)
class Snapshot:
    """The state of a `fit` in the memory of the chief.

    Attributes:
        position: How far it is.
        epochs: How many epochs it was asked for.
        finished: Whether it has ended, by itself or by `stop_training`.
        callbacks: The class and state of each callback.
        variables: As `variables.describe` describes them.
        arrays: Those of the callbacks' states.
        data: Where the dataset is, a variant, if it can tell.
    """

    position: Position
    epochs: int
    finished: bool
    callbacks: list[Any]
    variables: list[Any]
    arrays: dict[str, Any] = field(default_factory=dict)
    data: tf.Tensor | None = None

    def write(self, path: Path) -> None:
        """Writes the snapshot to the directory of a checkpoint.

        Raises:
            OSError: If the chief cannot write.
            tf.errors.OpError: If it cannot write the dataset's state.
        """
        beside = {"arrays", "data", "position"}
        state = {k: v for k, v in vars(self).items() if k not in beside}
        state["position"] = asdict(self.position)
        (path / _STATE).write_text(json.dumps(state))
        np.savez(path / _ARRAYS, **self.arrays)
        if self.data is not None:
            tf.raw_ops.SaveV2(
                prefix=str(path / _DATA),
                tensor_names=[_DATA],
                shape_and_slices=[""],
                tensors=[self.data],
            )

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """Reads what `write` has written.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If a file is not as written.
            tf.errors.OpError: The same, of the dataset's state.
        """
        state = json.loads((path / _STATE).read_text())
        state["position"] = Position(**state["position"])
        with np.load(path / _ARRAYS, allow_pickle=False) as arrays:
            state["arrays"] = dict(arrays)
        if (path / f"{_DATA}.index").exists():
            [state["data"]] = tf.raw_ops.RestoreV2(
                prefix=str(path / _DATA),
                tensor_names=[_DATA],
                shape_and_slices=[""],
                dtypes=[tf.variant],
            )
        return cls(**state)
