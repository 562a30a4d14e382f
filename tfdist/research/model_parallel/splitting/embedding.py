"""An embedding whose table is split. As plain as `keras.layers.Embedding` in a file."""

from collections.abc import MutableMapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdist._support.types import Nest
from tfdist.research.model_parallel.splitting.dense import set_from
from tfdist.research.model_parallel.splitting.pieces import (
    Join,
    PartOf,
    Pieces,
    RowsOfTable,
    keep,
)
from tfdist.research.model_parallel.splitting.split import (
    COLUMNS,
    LayerMatrix,
    Split,
    ranges,
    resolved,
)


# Named as the plain layer, for the reason that `dense.py` says.
@keras.saving.register_keras_serializable("tfdist", "SplitEmbedding")
class Embedding(keras.layers.Embedding):
    """A `keras.layers.Embedding` whose table is in parts.

    By columns, each part looks up some numbers of every row. By rows, each looks up the
    rows that it has, and zeros for the others, which are summed. The gradient of each
    part is of rows too, not of its whole table. If `by` is empty, it is by columns,
    which move fewer bytes, unless there are more parts.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        parts: int,
        by: str = "",
        **kwargs: Any,
    ) -> None:
        weights = kwargs.pop("weights", None)
        super().__init__(input_dim, output_dim, **kwargs)
        self.split = resolved(
            Split(parts, by),
            LayerMatrix(input_dim, output_dim, is_lookup=True),
            f"layer {self.name!r}",
        )
        self._of_activity: keras.Regularizer | None = self.activity_regularizer
        self.activity_regularizer: keras.Regularizer | None = None
        if weights is not None:
            self.build()
            self.set_whole_weights([weights[0] if len(weights) == 1 else weights])

    def build(self, input_shape: Nest = None) -> None:
        """Creates the parts."""
        if self.built:
            return
        by_columns = self.split.by == COLUMNS
        shape = (self.input_dim, self.output_dim)
        found = ranges(shape[int(by_columns)], self.split.parts)
        parts = [self._part(at, *each) for at, each in enumerate(found)]
        for part in parts:
            part.build()
        join = Join(
            not by_columns,
            activity_regularizer=self._of_activity,
            name=f"{self.name}_join",
            dtype=self.dtype_policy,
        )
        join.build(None)
        joined = found if by_columns and self._of_activity is None else None
        keep(self, Pieces(parts, join, [], joined=joined))
        self.built: bool = True

    def pieces(self) -> Pieces:
        """Returns the pieces of the layer."""
        return self.__pieces__

    def _part(self, at: int, start: int, end: int) -> Any:
        shape, axis = (self.input_dim, self.output_dim), int(self.split.by == COLUMNS)
        kwargs = {
            "embeddings_initializer": PartOf(
                self.embeddings_initializer, shape, axis, start, end
            ),
            "embeddings_regularizer": self.embeddings_regularizer,
            "embeddings_constraint": self.embeddings_constraint,
            "mask_zero": self.mask_zero,
            "name": f"{self.name}_part_{at}",
            "dtype": self.dtype_policy,
            "trainable": self.trainable,
        }
        if self.split.by == COLUMNS:
            return keras.layers.Embedding(self.input_dim, end - start, **kwargs)
        return RowsOfTable(
            start, end, self.input_dim, output_dim=self.output_dim, **kwargs
        )

    def call(self, inputs: Nest) -> Nest:
        """Looks up in all parts here."""
        return self.pieces()(inputs)

    @property
    def embeddings(self) -> Any:
        """The table in one piece: a copy."""
        axis = int(self.split.by == COLUMNS)
        return keras.ops.concatenate([e.embeddings for e in self.pieces().parts], axis)

    def whole_weights(self) -> list[np.ndarray]:
        """Returns the weights of the plain layer."""
        of_parts = [each.get_weights()[0] for each in self.pieces().parts]
        return [np.concatenate(of_parts, int(self.split.by == COLUMNS))]

    def set_whole_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Sets the parts of the table of a plain layer."""
        (table,) = (np.asarray(each) for each in weights)
        axis = int(self.split.by == COLUMNS)
        found = ranges(table.shape[axis], self.split.parts)
        for part, (start, end) in zip(self.pieces().parts, found, strict=True):
            part.set_weights([table[:, start:end] if axis else table[start:end]])

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Saves the table in one piece, as the plain layer does."""
        if self.built:
            store["0"] = self.whole_weights()[0]

    def load_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Loads what this layer or a plain one has saved, regardless of its parts."""
        if self.built:
            set_from(self, store, [(self.input_dim, self.output_dim)])

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer."""
        config = super().get_config()
        if self._of_activity is not None:
            found = keras.regularizers.serialize(self._of_activity)
            config["activity_regularizer"] = found
        return {**config, "parts": self.split.parts, "by": self.split.by}
