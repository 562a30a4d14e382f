"""The order of the examples of an epoch."""

import tensorflow as tf

# How many indices the chief computes at once: one by one takes ten times as long.
_AT_ONCE = 1024


def shuffled(examples: int, block: int, seed: int | None) -> tf.data.Dataset:
    """Returns the indices of all examples, in another order in each iteration.

    A permutation is computed, and not kept: it takes no memory, whatever the number of
    examples, and a checkpoint has it by its seed. Each `block` of examples stays
    together, in its order. Indices are int64 scalars. The seed is of all iterations;
    None for one that nobody knows.
    """
    blocks = -(-examples // block)
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
    seeds = seeds.take(2).batch(2, drop_remainder=True)

    def permuted(pair: tf.Tensor) -> tf.data.Dataset:
        def permute(numbers: tf.Tensor) -> tf.Tensor:
            shuffle = tf.random.experimental.index_shuffle
            return shuffle(numbers, pair, tf.constant(blocks - 1, tf.int64))

        chunks = tf.data.Dataset.range(blocks).batch(_AT_ONCE).map(permute)
        return chunks.map(within).unbatch()

    def within(numbers: tf.Tensor) -> tf.Tensor:
        first = numbers[:, tf.newaxis] * block
        indices = tf.reshape(first + tf.range(block, dtype=tf.int64), [-1])
        return tf.boolean_mask(indices, indices < examples)  # The last may be shorter.

    return _known(seeds.flat_map(permuted), examples)


def in_order(examples: int) -> tf.data.Dataset:
    """Returns the indices of all examples: a dataset of int64 scalars."""
    return tf.data.Dataset.range(examples)


def _known(indices: tf.data.Dataset, examples: int) -> tf.data.Dataset:
    # Keras asks for the number of batches, which the transformations above hide.
    return indices.apply(tf.data.experimental.assert_cardinality(examples))
