"""`tfdist.research.split_layers`: a model, some of whose layers are split."""

from collections.abc import Mapping
from typing import Any

import keras

from tfdist.research.model_parallel.splitting.dense import Dense, acts_by_number
from tfdist.research.model_parallel.splitting.embedding import Embedding
from tfdist.research.model_parallel.splitting.nodes import pieces_of
from tfdist.research.model_parallel.splitting.split import (
    LayerMatrix,
    Split,
    SplitError,
    resolved,
)

_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


def split_layers(model: keras.Model, layers: Any) -> keras.Model:
    """Returns a copy of a model in which some layers are split into parts.

    A `Dense` or an `Embedding` becomes parts, each with some columns or rows of its matrix.
    `tfdist.research.PipelineStrategy` computes each part on a device of its own; elsewhere the copy
    computes what the model does, to rounding. It is saved in one piece: the weights load
    in the plain model, and in one with other parts.

        split = {"big": 2, "table": tfdist.research.Split(4, "rows")}
        model = tfdist.research.split_layers(model, split)

    Source: Shoeybi et al., "Megatron-LM", 2019, section 3.

    Cost: with P parts, of an input and an output of x and y bytes, other devices receive
    and return in each direction `(P - 1) x + (P - 1) / P y` bytes by columns, and
    `(P - 1) / P x + (P - 1) y` by rows. A layer by columns that is followed by one by rows,
    in as many parts and with nothing in between, gives it its parts: both together move
    `(P - 1) (x + y)`, of the input of the first and the output of the second.

    Args:
        model: Functional or Sequential.
        layers: The number of parts, or a `tfdist.research.Split`, by the name of the layer; or a
            plan of `tfdist.research.place_layers`, which says the same.

    Raises:
        SplitError: If a layer cannot be split so.
        TypeError: If an argument has the wrong type.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model; received {model!r}")
    chosen = _chosen(model, layers)

    def copy(layer: keras.Layer) -> keras.Layer:
        if layer.name in chosen:
            return _split(layer, chosen[layer.name])
        return type(layer).from_config(layer.get_config())

    try:
        found = keras.models.clone_model(model, clone_function=copy)
    except ValueError as error:
        if isinstance(error, SplitError) or isinstance(model, keras.Sequential):
            raise
        raise _not_copied(model, error) from error
    if model.built:
        for old in model.layers:
            if old.weights:
                _carry(old, found.get_layer(old.name))
    return found


def _not_copied(model: keras.Model, error: Exception) -> SplitError:
    return SplitError(
        f"the model {model.name!r}, a {type(model).__name__}, cannot be copied layer by "
        f"layer ({error}). Build it from keras.Input(shape) to keras.Model(inputs, "
        "outputs)"
    )


def _chosen(model: keras.Model, layers: Any) -> dict[str, Split]:
    """Returns how each layer is split, by its name, if all of them can be."""
    layers = getattr(layers, "split", layers)
    if not isinstance(layers, Mapping):
        raise TypeError(
            'the layers to split must be a mapping such as {"big": 2, "table": '
            'tfdist.research.Split(4, "rows")}, or a plan of '
            f"tfdist.research.place_layers; received {layers!r}"
        )
    chosen = {
        str(getattr(name, "name", name)): each
        if isinstance(each, Split)
        else Split(each)
        for name, each in layers.items()
    }
    names = {each.name: each for each in model.layers}
    for name, split in chosen.items():
        if name not in names:
            raise _unknown(model, name)
        _check(names[name], split)
    return chosen


def _unknown(model: keras.Model, name: str) -> SplitError:
    inner = [
        each.name
        for each in model.layers
        if isinstance(each, keras.Model) and name in [e.name for e in each.layers]
    ]
    if inner:
        return SplitError(
            f"the layer {name!r} is one of the model {inner[0]!r} within the model, which "
            "is on one device. Call that model's layers in this one, or leave it whole"
        )
    possible = [e.name for e in model.layers if type(e) in _KINDS]
    return SplitError(
        f"the model {model.name!r} has no layer {name!r}; what can be split in it: "
        f"{', '.join(possible) or 'nothing'}"
    )


def _check(layer: keras.Layer, split: Split) -> None:
    kind = type(layer)
    if kind not in _KINDS:
        raise SplitError(
            f"layer {layer.name!r} is a {kind.__name__} of {kind.__module__}; what can be "
            "split is keras.layers.Dense and keras.layers.Embedding, not their subclasses. "
            "Leave it whole"
        )
    if reason := why_not(layer):
        raise SplitError(f"layer {layer.name!r} {reason}")
    if (matrix := _matrix(layer)) is not None:
        resolved(split, matrix, f"layer {layer.name!r}")


def why_not(layer: keras.Layer) -> str:
    """Returns why a Dense or an Embedding cannot be split, or an empty text."""
    prefix = "kernel" if isinstance(layer, keras.layers.Dense) else "embeddings"
    regularizer = getattr(layer, f"{prefix}_regularizer")
    constraint = getattr(layer, f"{prefix}_constraint")
    bias = getattr(layer, "bias_regularizer", None)
    for each in (regularizer, bias):
        if each is not None and type(each) not in _SUMS:
            return (
                f"has the regularizer {type(each).__name__}, which is not known to be a "
                "sum over the numbers of a weight. Take L1 or L2, or leave the layer whole"
            )
    for each in (constraint, getattr(layer, "bias_constraint", None)):
        if each is not None and type(each) is not keras.constraints.NonNeg:
            return (
                f"has the constraint {type(each).__name__}, which is not known to act on "
                "each number of a weight. Take NonNeg, or leave the layer whole"
            )
    if getattr(layer, "lora_rank", None) or getattr(layer, "quantization_mode", None):
        return "is quantized or has LoRA weights. Leave it whole"
    return ""


def matrix_of(layer: keras.Layer) -> LayerMatrix | None:
    """Returns the matrix of a layer that can be split; None of any other."""
    is_plain = type(layer) in (keras.layers.Dense, keras.layers.Embedding)
    return _matrix(layer) if is_plain and not why_not(layer) else None


def _matrix(layer: keras.Layer) -> LayerMatrix | None:
    is_whole = layer.activity_regularizer is not None
    if isinstance(layer, keras.layers.Embedding):
        return LayerMatrix(layer.input_dim, layer.output_dim, True, is_whole)
    # Its rows are those of its input, which is not known yet.
    if not layer.built:
        return None
    is_whole |= not acts_by_number(layer.activation)
    return LayerMatrix(layer.kernel.shape[0], layer.units, False, is_whole)


def _split(layer: keras.Layer, split: Split) -> Any:
    kwargs = {"parts": split.parts, "by": split.by}
    return _KINDS[type(layer)].from_config({**layer.get_config(), **kwargs})


def _carry(old: keras.Layer, new: keras.Layer) -> None:
    if pieces_of(new) is None:
        new.set_weights(old.get_weights())
    elif pieces_of(old) is None:
        new.set_whole_weights(old.get_weights())
    else:
        new.set_whole_weights(old.whole_weights())


# One that is split already may be split otherwise.
_KINDS: dict[type, Any] = {
    keras.layers.Dense: Dense,
    keras.layers.Embedding: Embedding,
    Dense: Dense,
    Embedding: Embedding,
}
