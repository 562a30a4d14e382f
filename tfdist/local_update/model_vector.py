"""A model as one vector: the variables that are mixed, and no others."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np


class ModelVector:
    """The weights of a model that workers mix, as one vector.

    They are its trainable weights, and the floating-point ones that training only
    updates: the statistics of `BatchNormalization`. Integers, seeds, metrics and the
    optimizer's state stay each worker's own.

    Attributes:
        variables: The Keras variables, in the order of the vector.
        count_trainable: How many variables are trainable: the first ones.
        dtype: The vector's dtype: float32, or float64 if a variable has it.
    """

    def __init__(self, model: Any) -> None:
        trainable = list(model.trainable_weights)
        rest = [each for each in model.weights if not _is_among(each, trainable)]
        self.variables = [
            each for each in [*trainable, *rest] if "float" in str(each.dtype)
        ]
        self.count_trainable = len(trainable)
        doubles = any(str(each.dtype) == "float64" for each in self.variables)
        self.dtype = np.dtype(np.float64 if doubles else np.float32)

    def part(self, indices: Sequence[int]) -> "ModelVector":
        """Returns the vector of some of the variables, with the same dtype.

        Indices ascend: trainable variables come first here, too.
        """
        part = copy.copy(self)
        part.variables = [self.variables[each] for each in indices]
        part.count_trainable = sum(each < self.count_trainable for each in indices)
        return part

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each variable."""
        return [int(np.prod(shape)) for shape in self.shapes]

    @property
    def num_trainable(self) -> int:
        """The number of elements of all trainable variables together."""
        return sum(self.sizes[: self.count_trainable])

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each variable, in the order of the vector."""
        return [tuple(each.shape) for each in self.variables]

    def read(self) -> np.ndarray:
        """Returns the weights: float32, or float64 if one of them is."""
        parts = [np.asarray(each.numpy(), self.dtype) for each in self.variables]
        return np.concatenate([np.zeros(0, self.dtype), *map(np.ravel, parts)])

    def write(self, vector: np.ndarray) -> None:
        """Sets the weights to a vector."""
        for variable, values in zip(self.variables, self.split(vector), strict=True):
            variable.assign(values)

    def split(self, vector: np.ndarray) -> list[np.ndarray]:
        """Returns the values of each variable in a vector."""
        ends = np.cumsum(self.sizes).tolist()
        parts = np.split(vector, ends[:-1]) if ends else []
        return [
            part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)
        ]


def _is_among(variable: Any, variables: list[Any]) -> bool:
    # `in` would compare values.
    return any(variable is each for each in variables)
