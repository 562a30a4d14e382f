"""A dense layer whose matrix is split, as plain as `keras.layers.Dense` in a file."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.research.model_parallel.splitting.pieces import (
    Cut,
    Join,
    PartOf,
    Pieces,
    keep,
)
from tfdist.research.model_parallel.splitting.split import (
    COLUMNS,
    ROWS,
    LayerMatrix,
    Split,
    ranges,
    resolved,
)

# fmt: off
_BY_NUMBER = (
    "elu", "gelu", "relu", "relu6", "selu", "silu", "tanh", "celu", "mish", "linear",
    "sigmoid", "softplus", "softsign", "exponential", "hard_sigmoid", "hard_silu",
    "hard_swish", "hard_tanh", "leaky_relu", "log_sigmoid", "squareplus", "swish",
)
# fmt: on


def acts_by_number(activation: Callable[[tf.Tensor], tf.Tensor] | str | None) -> bool:
    """Returns True if an activation is known to act on each number by itself."""
    if activation is None:
        return True
    name = getattr(activation, "__name__", "")
    known = getattr(keras.activations, name, None) if name in _BY_NUMBER else None
    return known is not None and known is activation


# Files name what they keep by the class: with this name a plain layer loads what this one
# has saved, and the other way round.
@keras.saving.register_keras_serializable("tfdist", "SplitDense")
class Dense(keras.layers.Dense):
    """A `keras.layers.Dense` whose matrix is in parts.

    By columns, each part computes some of the outputs, of the whole input. By rows,
    each computes a summand of all outputs, of some of the inputs. It computes what the
    plain layer does, to rounding, and is saved in one piece. If `by` is empty, it is by
    what moves fewer bytes.

    Source: Shoeybi et al., "Megatron-LM", 2019, section 3.
    """

    def __init__(
        self, units: int, *, parts: int, by: str = "", **kwargs: object
    ) -> None:
        super().__init__(units, **kwargs)
        self.split = Split(parts, by)
        # The regularizer of the join's output, wherever that output is computed.
        self._of_activity: keras.Regularizer | None = self.activity_regularizer
        self.activity_regularizer: keras.Regularizer | None = None

    def build(self, input_shape: Sequence[int]) -> None:
        """Creates the parts."""
        shape = (input_shape[-1], self.units)
        self.split = resolved(self.split, LayerMatrix(*shape), f"layer {self.name!r}")
        by_columns = self.split.by == COLUMNS
        found = ranges(shape[int(by_columns)], self.split.parts)
        make = self._by_columns if by_columns else self._by_rows
        pieces = make(shape, found)
        for at, part in enumerate(pieces.parts):
            start, end = found[at]
            part.build((*input_shape[:-1], shape[0] if by_columns else end - start))
        pieces.join.build(None)
        keep(self, pieces)
        self.input_spec = keras.InputSpec(min_ndim=2, axes={-1: shape[0]})
        self.built = True

    def pieces(self) -> Pieces:
        """Returns the pieces of the layer."""
        return self.__pieces__

    def _by_columns(
        self, shape: tuple[int, int], found: list[tuple[int, int]]
    ) -> Pieces:
        is_elementwise = acts_by_number(self.activation)
        parts = [
            keras.layers.Dense(
                end - start,
                self.activation if is_elementwise else None,
                self.use_bias,
                PartOf(self.kernel_initializer, shape, 1, start, end),
                PartOf(self.bias_initializer, shape[1:], 0, start, end),
                bias_constraint=self.bias_constraint,
                bias_regularizer=self.bias_regularizer,
                **self._of_part(at),
            )
            for at, (start, end) in enumerate(found)
        ]
        # Softmax, for one, needs all outputs, so it waits for the join.
        activation = None if is_elementwise else self.activation
        join = self._join(False, activation=activation)
        is_plain = is_elementwise and self._of_activity is None
        return Pieces(parts, join, [], joined=found if is_plain else None)

    def _by_rows(self, shape: tuple[int, int], found: list[tuple[int, int]]) -> Pieces:
        parts, cuts = [], []
        for at, (start, end) in enumerate(found):
            initializer = PartOf(self.kernel_initializer, shape, 0, start, end)
            kwargs = {"kernel_initializer": initializer, **self._of_part(at)}
            # Each part gives a summand of every output: the join adds the bias, once.
            parts.append(keras.layers.Dense(self.units, use_bias=False, **kwargs))
            name = f"{self.name}_cut_{at}"
            cuts.append(Cut(start, end, name=name, dtype=self.dtype_policy))
        bias = {
            "shape": shape[1:],
            "initializer": self.bias_initializer,
            "regularizer": self.bias_regularizer,
            "constraint": self.bias_constraint,
        }
        join = self._join(
            True, bias=bias if self.use_bias else None, activation=self.activation
        )
        return Pieces(parts, join, cuts, cut=found)

    def _of_part(self, at: int) -> dict[str, Any]:
        return {
            "kernel_regularizer": self.kernel_regularizer,
            "kernel_constraint": self.kernel_constraint,
            "name": f"{self.name}_part_{at}",
            "dtype": self.dtype_policy,
            "trainable": self.trainable,
        }

    def _join(self, is_sum: bool, **kwargs: Any) -> Join:
        return Join(
            is_sum,
            activity_regularizer=self._of_activity,
            name=f"{self.name}_join",
            dtype=self.dtype_policy,
            trainable=self.trainable,
            **kwargs,
        )

    def call(self, inputs: Nest, training: bool | None = None) -> Nest:
        """Computes all parts here."""
        return self.pieces()(inputs)

    @property
    def kernel(self) -> Any:
        """The matrix in one piece: a copy."""
        axis = int(self.split.by == COLUMNS)
        return keras.ops.concatenate([e.kernel for e in self.pieces().parts], axis)

    @property
    def bias(self) -> Any:
        """The bias in one piece, or None; of columns a copy."""
        if not self.use_bias:
            return None
        if self.split.by == ROWS:
            return self.pieces().join.bias
        return keras.ops.concatenate([e.bias for e in self.pieces().parts], 0)

    @bias.setter
    def bias(self, value: Any) -> None:
        assert value is None, "the bias is in parts"

    def whole_weights(self) -> list[np.ndarray]:
        """Returns the weights of the plain layer."""
        pieces, axis = self.pieces(), int(self.split.by == COLUMNS)
        of_parts = [each.get_weights() for each in pieces.parts]
        kernel = np.concatenate([each[0] for each in of_parts], axis)
        if not self.use_bias:
            return [kernel]
        if self.split.by == ROWS:
            return [kernel, *pieces.join.get_weights()]
        return [kernel, np.concatenate([each[1] for each in of_parts])]

    def set_whole_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Sets the parts of the weights of a plain layer."""
        kernel, *bias = (np.asarray(each) for each in weights)
        pieces, by_columns = self.pieces(), self.split.by == COLUMNS
        found = ranges(kernel.shape[int(by_columns)], self.split.parts)
        for part, (start, end) in zip(pieces.parts, found, strict=True):
            if by_columns:
                values = [kernel[:, start:end], *(each[start:end] for each in bias)]
            else:
                values = [kernel[start:end]]
            part.set_weights(values)
        if not by_columns:
            pieces.join.set_weights(bias)

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Saves the weights in one piece, as the plain layer does."""
        if self.built:
            for at, each in enumerate(self.whole_weights()):
                store[str(at)] = each

    def load_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Loads what this layer or a plain one has saved, regardless of its parts."""
        if self.built:
            set_from(self, store, [(self._rows(), self.units), (self.units,)])

    def _rows(self) -> int:
        return int(self.input_spec.axes[-1])

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        config = super().get_config()
        serialized = keras.regularizers.serialize(self._of_activity)
        config["activity_regularizer"] = serialized if self._of_activity else None
        return {**config, "parts": self.split.parts, "by": self.split.by}


def set_from(
    layer: keras.Layer,
    store: MutableMapping[str, np.ndarray],
    shapes: Sequence[tuple[int, ...]],
) -> None:
    """Sets a split layer's weights from a file's, which are in one piece."""
    found = [np.asarray(store[str(at)]) for at in range(len(store.keys()))]
    count = 2 if getattr(layer, "use_bias", False) else 1
    if [each.shape for each in found] != list(shapes[:count]):
        raise ValueError(
            f"layer {layer.name!r} has weights of the shapes {list(shapes[:count])} in "
            f"one piece; received {[each.shape for each in found]}: the file is that of "
            "another model"
        )
    layer.set_whole_weights(found)
