"""Origin of a table's first rows, which its checkpoints record."""

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Origin:
    """The parameters that turn ids into first rows.

    Attributes:
        seed: The seed of the first rows.
        is_drawn: Whether nobody chose the seed, so that a table takes that of the
            checkpoint which it restores.
        has_strings: Whether ids are hashes of strings.
    """

    seed: int
    is_drawn: bool = False
    has_strings: bool = False

    def numbers(self) -> list[int]:
        """Returns the saved numbers, int64."""
        return [self.seed, int(self.has_strings)]

    def checks(self, saved: tf.Tensor, name: str) -> list[tf.Operation]:
        """Returns operations that fail if a checkpoint's numbers are another table's.

        Args:
            saved: The `numbers` of the checkpoint.
            name: The table's, for the errors.
        """
        kind = "string" if self.has_strings else "int64"
        checked = [
            tf.debugging.assert_equal(
                saved[1],
                tf.constant(int(self.has_strings), tf.int64),
                f"{name}: a table of the other key_dtype is restored into one with "
                f'key_dtype="{kind}". Build the layer with that of the checkpoint',
            )
        ]
        if not self.is_drawn:
            checked.append(
                tf.debugging.assert_equal(
                    saved[0],
                    tf.constant(self.seed, tf.int64),
                    f"{name}: a table of another seed is restored into one with "
                    f"seed={self.seed}, so that new rows would begin as no row before "
                    "them. Build the layer with the seed of the checkpoint, or without "
                    "one, and it takes that of the checkpoint",
                )
            )
        # In a graph, an assertion is an operation; outside of one it is None.
        return [check for check in checked if check is not None]
