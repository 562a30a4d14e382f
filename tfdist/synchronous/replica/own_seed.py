"""TensorFlow's random numbers on a replica, from a seed of its own."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

# More than programs count seeds.
_SEEDS_APART = 1_000_003


class OwnSeed:
    """The seed from which one replica draws numbers.

    With `tf.random.set_seed`, all replicas would draw the same numbers. The first one draws
    those of one process.
    """

    def __init__(self, replica: tf.Tensor) -> None:
        self._replica = replica
        self._seed: int | None = None

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Draws TensorFlow's random numbers from the seed within this context."""
        graph = tf.compat.v1.get_default_graph()
        before, replica = graph.seed, tf.get_static_value(self._replica)
        if before is None or replica is None:
            yield
            return
        self._seed = graph.seed = before + int(replica) * _SEEDS_APART
        try:
            yield
        finally:
            graph.seed = before

    def draw_again(self) -> None:
        """Takes up the seed again, after other replicas have been traced."""
        if self._seed is not None:
            tf.compat.v1.get_default_graph().seed = self._seed
