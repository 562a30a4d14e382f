"""TensorFlow's random numbers on a replica, from a seed of its own."""

import contextlib

import tensorflow as tf

from tfdist._support.context import having

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

    def drawing(self) -> contextlib.AbstractContextManager[None]:
        """Draws TensorFlow's random numbers from the seed within this context."""
        graph = tf.compat.v1.get_default_graph()
        before, replica = graph.seed, tf.get_static_value(self._replica)
        if before is None or replica is None:
            return contextlib.nullcontext()
        self._seed = before + int(replica) * _SEEDS_APART
        return having(graph, seed=self._seed)

    def draw_again(self) -> None:
        """Takes up the seed again, after other replicas have been traced."""
        if self._seed is not None:
            tf.compat.v1.get_default_graph().seed = self._seed
