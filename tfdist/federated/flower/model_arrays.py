"""The arrays of a Keras model, named as Flower names those of `model.get_weights()`."""

from typing import Any

from tfdist.federated.flower.array_layout import ArrayLayout
from tfdist.local_update.model_vector import ModelVector


def layout_of(model: Any, vector: ModelVector) -> ArrayLayout:
    """Returns the layout of the weights that travel, in the order of their vector.

    Each is named by its place in `model.weights`. Without integer weights, such as the
    seeds of `Dropout`, that is the form of `ArrayRecord(model.get_weights())`.
    """
    place = {id(each): str(index) for index, each in enumerate(model.weights)}
    parts = vector.split(vector.read())
    names = [place[id(each)] for each in vector.variables]
    return ArrayLayout(dict(zip(names, parts, strict=True)))
