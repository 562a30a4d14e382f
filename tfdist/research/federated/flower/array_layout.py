"""The arrays of a message as one vector, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdist.local_update.model_vector import ModelVector


class ArrayLayout:
    """The names and shapes of a model's arrays, in the order of its vector.

    The vector is float32, or float64 if one of the arrays is. Arrays that are no floats are
    refused, since no rule can average them.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        others = {
            name: each.dtype.name
            for name, each in arrays.items()
            if not np.issubdtype(each.dtype, np.floating)
        }
        if others or not arrays:
            raise ValueError(
                "a model is sent as arrays of floats, one or more; received "
                f"{others or 'none'}. Leave out what is not averaged"
            )
        self.shapes = {name: each.shape for name, each in arrays.items()}
        doubles = any(each.dtype == np.float64 for each in arrays.values())
        self.dtype = np.dtype(np.float64 if doubles else np.float32)

    def vector(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns arrays as a vector, (parameters,); refuses another model's arrays."""
        shapes = {name: each.shape for name, each in arrays.items()}
        if shapes != self.shapes:
            raise ValueError(
                f"the model's arrays have shapes {self.shapes}; received {shapes}"
            )
        parts = [np.asarray(arrays[name], self.dtype) for name in self.shapes]
        return np.concatenate([part.ravel() for part in parts])

    def arrays(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of a vector, by name."""
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


def layout_of(model: Any, vector: ModelVector) -> ArrayLayout:
    """Returns the layout of the weights that travel, in the order of their vector.

    Each is named by its place in `model.weights`. Without integer weights, such as the
    seeds of `Dropout`, that is the form of `ArrayRecord(model.get_weights())`.
    """
    place = {id(each): str(index) for index, each in enumerate(model.weights)}
    parts = vector.split(vector.read())
    names = [place[id(each)] for each in vector.variables]
    return ArrayLayout(dict(zip(names, parts, strict=True)))
