"""An endless stream of generated ratings, for tables of any size.

Few items are rated often and most hardly ever: the item of rank `k` appears with a
probability of about `k ** -exponent` (Zipf's law). A rating is a function of hashes of
the user, the item and the item's tags, so there is something to learn and nothing to
store: the stream needs no memory for its users and items.
"""

from __future__ import annotations

import dataclasses
import zlib

import tensorflow as tf

MEAN = 3.5
NOISE = 0.25
"""Standard deviation of the part of a rating that cannot be learned, in stars."""
MOST_TAGS = 3
NO_TAG = -1

# A prime above any number of items (Knuth's, near the golden section of 2**32), which
# maps the ranks one to one to rows all over the table. In the order of rank, the ps with
# the first rows would do most of the work.
_SPREAD = 2_654_435_761


@dataclasses.dataclass(frozen=True)
class ZipfRatings:
    """Ratings of `num_items` items, up to 2**31 - 1, by `num_users` users.

    Attributes:
        num_items: The number of items.
        num_users: The number of users; all of them rate equally often.
        num_tags: The number of tags; an item has 1 to `MOST_TAGS` of them.
        exponent: The exponent of Zipf's law; 0 makes all items equally popular.
    """

    num_items: int
    num_users: int = 10_000
    num_tags: int = 20
    exponent: float = 1.0

    def batches(self, batch_size: int, seed: int) -> tf.data.Dataset:
        """Returns endless batches; the i-th batch of a seed is always the same.

        Each is a pair: a dict of `user`, shape `[batch_size]`, `item`, of that shape,
        and `tags`, shape `[batch_size, MOST_TAGS]`, padded with `NO_TAG`; and
        the ratings, float32, shape `[batch_size]`.
        """
        return tf.data.Dataset.counter().map(
            lambda step: self._batch(batch_size, tf.stack([seed, step]))
        )

    def _batch(
        self, batch_size: int, seed: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        for_user, for_item, for_noise = tf.unstack(
            tf.random.split(seed, 3), num=3, axis=0
        )
        user = tf.random.stateless_uniform(
            [batch_size], for_user, maxval=self.num_users, dtype=tf.int32
        )
        uniform = tf.random.stateless_uniform([batch_size], for_item, dtype=tf.float64)
        item = self.ranked(self.rank(uniform))
        tags = self.tags_of(item)
        noise = NOISE * tf.random.stateless_normal([batch_size], for_noise)
        stars = self.expected_stars(user, item, tags) + noise
        return {"user": user, "item": tf.cast(item, tf.int32), "tags": tags}, stars

    def rank(self, uniform: tf.Tensor) -> tf.Tensor:
        """Returns the ranks, from 0, at quantiles of their distribution, int64.

        A continuous Zipf distribution, rounded down: the probability of rank `k` is
        proportional to the integral of `x ** -exponent` from `k + 1` to `k + 2`.
        """
        end = float(self.num_items + 1)
        if self.exponent == 1:
            x = end**uniform
        else:
            power = 1 - self.exponent
            x = (1 + uniform * (end**power - 1)) ** (1 / power)
        # Rounding may reach the end.
        return tf.minimum(tf.cast(x, tf.int64) - 1, self.num_items - 1)

    def ranked(self, rank: tf.Tensor) -> tf.Tensor:
        """Returns the items of these ranks, spread over the whole table."""
        return rank * _SPREAD % self.num_items

    def tags_of(self, item: tf.Tensor) -> tf.Tensor:
        """Returns the tags of items, padded with `NO_TAG`, int32."""
        columns = []
        for i in range(MOST_TAGS):
            tag = tf.cast((_hash(item, f"tag {i}") + 1) / 2 * self.num_tags, tf.int32)
            is_there = _hash(item, f"has tag {i}") < 1 - 0.6 * i
            columns.append(tf.where(is_there, tag, NO_TAG))
        return tf.stack(columns, axis=1)

    def expected_stars(
        self, user: tf.Tensor, item: tf.Tensor, tags: tf.Tensor
    ) -> tf.Tensor:
        """Returns the expected ratings of items by users, float32."""
        taste = _hash(user, "taste of a user") * _hash(item, "taste of an item")
        is_tag = tf.cast(tags != NO_TAG, tf.float32)
        tag_sums = tf.reduce_sum(is_tag * _hash(tags, "tag"), axis=1)
        tag_means = tag_sums / tf.reduce_sum(is_tag, axis=1)
        return (
            MEAN
            + 0.5 * _hash(user, "user")
            + 0.8 * _hash(item, "item")
            + 0.3 * tag_means
            + 0.5 * taste
        )


def _hash(ids: tf.Tensor, purpose: str) -> tf.Tensor:
    """Returns pseudorandom numbers in [-1, 1) that are functions of the ids."""
    salt = tf.constant(zlib.crc32(purpose.encode()) << 32, tf.uint64)
    mixed = tf.cast(ids, tf.uint64) ^ salt
    # The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        shifted = tf.bitwise.right_shift(mixed, tf.constant(shift, tf.uint64))
        mixed = (mixed ^ shifted) * tf.constant(factor, tf.uint64)
    bits = tf.cast(tf.bitwise.right_shift(mixed, tf.constant(40, tf.uint64)), tf.int32)
    return tf.cast(bits, tf.float32) / 2**23 - 1
