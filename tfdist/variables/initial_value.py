"""The initial value of a partitioned variable, per shard where possible."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist._support.errors import RefusalError
from tfdist.variables.shard_layout import ShardLayout

_RANDOM = (
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
)

_PIECE_BYTES = 16 << 20


class Unwritten(keras.initializers.Initializer):
    """Reserves memory, and writes nothing there.

    The operating system gives a page of memory to whoever first writes to it.
    """

    def __call__(self, shape: Any, dtype: Any = None) -> tf.Tensor:
        """Returns a tensor without any written element.

        Raises:
            RefusalError: If the operating system does not reserve so much.
        """
        dtype = tf.as_dtype(dtype or keras.config.floatx())
        try:
            return tf.raw_ops.Empty(shape=list(shape), dtype=dtype, init=False)
        except tf.errors.ResourceExhaustedError as error:
            size = math.prod(shape) * dtype.size
            raise RefusalError(
                f"a ps cannot reserve {size:,} bytes for {shape[0]:,} rows of a table that "
                "grows, or of one of its optimizer's slots, which take as much each. "
                "Reserve fewer rows (max_rows), use more ps, or an optimizer with fewer "
                "slots; with vm.overcommit_memory=2, the kernel gives no more than there "
                "is"
            ) from error


class Piece(NamedTuple):
    """The rows `start` to `stop` (exclusive) of a shard, and their function."""

    start: int
    stop: int
    value: Callable[[], tf.Tensor]


@dataclass(frozen=True)
class ShardValue:
    """The initial value of a shard.

    Attributes:
        initial: Computes the value to create the shard with.
        pieces: Values to assign to its rows afterwards.
    """

    initial: Callable[[], tf.Tensor]
    pieces: tuple[Piece, ...] = ()

    def assign_pieces(self, shard: tf.Variable) -> None:
        """Assigns the pieces one by one, on the shard's device."""
        # A slot may be created while a step is traced. Its values are assigned now, and
        # not in every step.
        with tf.init_scope(), tf.device(shard.device):
            for start, stop, value in self.pieces:
                tf.raw_ops.ResourceStridedSliceAssign(
                    ref=shard.handle,
                    begin=[start],
                    end=[stop],
                    strides=[1],
                    value=value(),
                )


def of_shards(
    initial_value: Any,
    initializer: keras.Initializer,
    shape: tuple[int, ...],
    dtype: str,
    layout: ShardLayout,
) -> list[ShardValue]:
    """Returns how to compute each shard's initial value.

    An initializer whose elements do not depend on the shape runs per shard, on the
    shard's ps, so no process holds the whole value. A random one runs for a few rows at
    a time, with a seed for each call, since it uses several times the memory of its
    result. Any other initializer (for example one scaled by the fan-in) computes the
    whole value once, on the chief, to be sliced. `initial_value` is the argument of
    `tf.Variable`; `initializer`, Keras's behind it, if any.
    """
    partition = layout.partition
    shapes = [partition.shard_shape(shape, i) for i in range(len(partition.bounds))]
    if isinstance(initializer, Unwritten):
        return [
            ShardValue(functools.partial(initializer, each, dtype)) for each in shapes
        ]
    constant = constant_of(initializer)
    if constant is not None:
        fill = functools.partial(_filled, constant, tf.as_dtype(dtype))
        return [ShardValue(functools.partial(fill, each)) for each in shapes]
    # Not isinstance: a subclass may depend on the shape; these classes do not.
    if type(initializer) in _RANDOM:
        seeded = (_reseeded(initializer, i) for i in itertools.count())
        return [_random(seeded, each, tf.as_dtype(dtype)) for each in shapes]
    with tf.device("CPU:0"):
        whole = initial_value() if callable(initial_value) else initial_value
        parts = layout.split(tf.convert_to_tensor(whole, dtype))
    return [ShardValue(functools.partial(tf.identity, part)) for part in parts]


def constant_of(initializer: keras.Initializer) -> Any:
    """Returns the scalar of a constant initializer; None for any other."""
    if type(initializer) is keras.initializers.Zeros:
        return 0
    if type(initializer) is keras.initializers.Ones:
        return 1
    if type(initializer) is keras.initializers.Constant:
        return initializer.value if np.ndim(initializer.value) == 0 else None
    return None


def _filled(constant: Any, dtype: tf.DType, shape: tuple[int, ...]) -> tf.Tensor:
    return tf.fill(shape, tf.cast(constant, dtype))


def _random(
    seeded: Iterator[Any], shape: tuple[int, ...], dtype: tf.DType
) -> ShardValue:
    rows = max(1, _PIECE_BYTES // max(1, math.prod(shape[1:]) * dtype.size))
    if shape[0] <= rows:
        return ShardValue(functools.partial(next(seeded), shape, dtype.name))
    pieces = []
    for start in range(0, shape[0], rows):
        stop = min(start + rows, shape[0])
        piece_shape = (stop - start, *shape[1:])
        value = functools.partial(next(seeded), piece_shape, dtype.name)
        pieces.append(Piece(start, stop, value))
    return ShardValue(functools.partial(_filled, 0, dtype, shape), tuple(pieces))


def _reseeded(initializer: keras.Initializer, piece: int) -> Any:
    """Returns the initializer with a seed for this piece; one seed repeats values."""
    if piece == 0 or not isinstance(initializer.seed, int):
        return initializer
    # Not seed + piece, which is likely to be the seed of another table.
    # Masked, since a SeedSequence takes no negative seed.
    sequence = np.random.SeedSequence(initializer.seed & 0xFFFFFFFF, spawn_key=(piece,))
    seed = int(sequence.generate_state(1)[0])
    config = initializer.get_config()
    return type(initializer).from_config({**config, "seed": seed})
