"""A hash table on a ps: numbers by id."""

import tensorflow as tf

from tfdist.embedding.differentiable import ABSENT
from tfdist.variables.resources import Resource


class HashTable(Resource):
    """Numbers by id, both int64. Each operation is atomic; two of them are not.

    Memory: 49.5 bytes per id.

    Args:
        device: The device of the ps, or "" for this process.
    """

    def __init__(self, device: str) -> None:
        super().__init__(
            # Not MutableDenseHashTableV2, which may store a key twice after removals.
            "MutableHashTableV2",
            device,
            use_node_name_sharing=False,
            key_dtype=tf.int64,
            value_dtype=tf.int64,
        )

    def find(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the number of each id, and `ABSENT` for those that are not there."""
        with tf.device(self.device):
            found = tf.raw_ops.LookupTableFindV2(
                table_handle=self.handle,
                keys=ids,
                default_value=tf.constant(ABSENT, tf.int64),
            )
        found.set_shape(ids.shape)
        return found

    def insert(self, ids: tf.Tensor, numbers: tf.Tensor) -> tf.Operation:
        """Sets the numbers of ids."""
        with tf.device(self.device):
            return tf.raw_ops.LookupTableInsertV2(
                table_handle=self.handle, keys=ids, values=numbers
            )

    def remove(self, ids: tf.Tensor) -> tf.Operation:
        """Removes ids."""
        with tf.device(self.device):
            return tf.raw_ops.LookupTableRemoveV2(table_handle=self.handle, keys=ids)

    def replace(self, ids: tf.Tensor, numbers: tf.Tensor) -> tf.Operation:
        """Removes all ids, and sets these."""
        with tf.device(self.device):
            return tf.raw_ops.LookupTableImportV2(
                table_handle=self.handle, keys=ids, values=numbers
            )

    def items(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all ids and their numbers, in any order."""
        with tf.device(self.device):
            ids, numbers = tf.raw_ops.LookupTableExportV2(
                table_handle=self.handle, Tkeys=tf.int64, Tvalues=tf.int64
            )
        ids.set_shape([None])
        numbers.set_shape([None])
        return ids, numbers

    def size(self) -> tf.Tensor:
        """Returns how many ids there are."""
        with tf.device(self.device):
            return tf.raw_ops.LookupTableSizeV2(table_handle=self.handle)
