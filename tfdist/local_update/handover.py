"""State for a worker that rejoins a running `fit`, and continuation from it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.local_update.local_peers import StartRecord
from tfdist.local_update.mix import Mix
from tfdist.local_update.rejoin import RejoinError
from tfdist.local_update.rejoining import State
from tfdist.local_update.sharing import DataPlace
from tfdist.peers.callbacks import resume_at


@dataclasses.dataclass
class FitPlace:
    """The position of a worker in a call of `fit`.

    Attributes:
        fit: The number of the call, from 1.
        epoch: The index of the epoch.
        steps: The number of steps of the epoch that are done.
        data: The worker's position in its data.
        record: The values that workers told each other as the call started.
    """

    fit: int
    epoch: int
    steps: int
    data: DataPlace
    record: StartRecord

    @classmethod
    def of(cls, info: dict[str, Any]) -> "FitPlace":
        """Returns the place that was handed over."""
        data, record = DataPlace(**info["data"]), StartRecord(**info["record"])
        return cls(info["fit"], info["epoch"], info["steps"], data, record)


def packed(place: FitPlace, model: keras.Model, mix: Mix) -> State:
    """Returns the state that a worker needs to continue from this one's.

    Besides the place: weights, optimizer, seeds and metrics, and the state of the mix.
    """
    places, arrays = mix.state
    info = {**dataclasses.asdict(place), "mix": places}
    return info, [*_values(model), *arrays]


def take_over(state: State, model: keras.Model, mix: Mix) -> None:
    """Sets a model, and what mixes it, to what another worker has handed over.

    Raises:
        RejoinError: If the model is another one.
    """
    info, received = state
    _, own = mix.state
    arrays = as_arrays(received, [*_values(model), *own])
    variables = _variables(model)
    for variable, value in zip(variables, arrays[: len(variables)], strict=True):
        variable.assign(value)
    mix.state = info["mix"], arrays[len(variables) :]
    resume_at(model, info["epoch"])


def as_arrays(
    received: Sequence[np.ndarray], like: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns arrays of the shapes and dtypes of others, from their bytes.

    Raises:
        RejoinError: If there are more or fewer, or they have other sizes.
    """
    theirs, mine = [len(each) for each in received], [each.nbytes for each in like]
    if theirs != mine:
        raise RejoinError(
            "the model, its optimizer or the outer optimizer of this worker has other "
            f"variables than the others' ({len(mine)} of {sum(mine)} bytes, and "
            f"{len(theirs)} of {sum(theirs)}): run the same script on all workers"
        )
    pairs = zip(received, like, strict=True)
    return [each.copy().view(old.dtype).reshape(old.shape) for each, old in pairs]


def check_data(data: Any) -> None:
    """Checks that a worker can continue in the middle of the data `x` of `fit`."""
    if isinstance(data, tf.data.Dataset):
        return
    leaves = keras.tree.flatten(data)
    if leaves and all(hasattr(each, "__array__") for each in leaves):
        return
    raise RejoinError(
        "this worker was started again, and fit has data in the middle of which nobody can "
        f"begin: {type(data).__name__}. A worker comes back while fit reads arrays or a "
        "tf.data.Dataset. Start the whole cluster again; with the callback "
        "keras.callbacks.BackupAndRestore, training resumes from the chief's backup"
    )


def _variables(model: keras.Model) -> list[Any]:
    optimizer = model.optimizer
    variables = [*model.variables, *(optimizer.variables if optimizer else ())]
    # Each once, and in the same order on all workers: bytes are told apart by their place.
    return list({id(each): each for each in variables}.values())


def _values(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(each.numpy()) for each in _variables(model)]
