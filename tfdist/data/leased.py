"""A dataset whose elements any process can read by their leases."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.endings import ending_in_the_program
from tfdist._support.types import Nest
from tfdist.data.source_files import SourceFiles

Open = Callable[..., tf.data.Dataset]
Stages = tuple[tuple[str, Open], ...]

# TensorFlow 2.21 fails to fuse the two in a function that has captured a variable.
_NOT_FUSED = tf.data.Options()
_NOT_FUSED.experimental_optimization.map_and_batch_fusion = False

_ending_in_the_program = functools.partial(
    ending_in_the_program,
    applies=lambda *_: tf.debugging.is_traceback_filtering_enabled(),
)


class LeasedDataset(_tf.SameDataset):
    """A `tf.data.Dataset` in two parts: which examples each element has, and the rest.

    A lease is small: the indices of the examples of a batch, or where they are in their
    files. In one process, the dataset is its leases, each read as it comes. On parameter
    servers, the chief deals the leases out, and the worker that has one reads it.

    `map` and the batches are done by who reads; `shuffle`, `repeat`, `take`, `skip` and `shard`
    change the order of leases alone. Any other transformation needs the examples in one
    place, and returns an ordinary dataset.

    Args:
        leases: The dataset of leases. Each is a tuple of tensors, with the examples along
            the first axis once there are batches.
        open_lease: Takes a lease of any number of examples, and returns the dataset of
            what there is to read.
        whole: Takes such a lease, and returns the examples at once, along the first axis;
            None if only `open_lease` can.
        has_batches: Whether each lease is of a batch.
        source: The source to read.
        stages: The stages of `open_lease`, in order: a name, and a function that opens
            a lease up to there. One stage, "reading", without it.

    Attributes:
        stages: These.
    """

    def __init__(
        self,
        leases: tf.data.Dataset,
        open_lease: Open,
        whole: Callable[..., Nest] | None,
        has_batches: bool,
        source: SourceFiles,
        stages: Stages | None = None,
    ) -> None:
        self.stages = stages or (("reading", open_lease),)
        self.leases = leases
        self.source = source
        self._open = open_lease
        self._whole = whole
        self._has_batches = has_batches
        # Only functions of the program are converted, and shown where they fail.
        read = tf.autograph.experimental.do_not_convert(self.read)
        here = leases.map(read, num_parallel_calls=tf.data.AUTOTUNE)
        super().__init__(here.with_options(_NOT_FUSED))

    def read(self, *lease: tf.Tensor) -> Nest:
        """Reads the element of a lease, in the process and the graph that call it."""
        if not self._has_batches:
            # The function that opens leases takes several at a time.
            lease = tuple(part[tf.newaxis] for part in lease)
        return self._open(*lease).get_single_element()

    def read_until(self, stage: int, *lease: tf.Tensor) -> tf.Tensor:
        """Reads a lease up to a stage, and returns how many elements that makes."""
        if not self._has_batches:
            lease = tuple(part[tf.newaxis] for part in lease)
        _, open_lease = self.stages[stage]
        # As `read` does it: `reduce` has a tuner, whose end takes 10 ms.
        read = open_lease(*lease).map(_one).batch(tf.shape(lease[0], tf.int64)[0])
        return tf.size(read.get_single_element())

    def _then(
        self,
        name: str,
        transformed: Callable[[tf.data.Dataset], tf.data.Dataset],
        leases: tf.data.Dataset,
        has_batches: bool,
    ) -> "LeasedDataset":
        """Returns a dataset that does something more when it opens a lease."""
        before = self._open

        def open_lease(*lease: tf.Tensor) -> tf.data.Dataset:
            return transformed(before(*lease))

        stages = (*self.stages, (name, open_lease))
        return LeasedDataset(leases, open_lease, None, has_batches, self.source, stages)

    def _ordered(self, transformation: str, *args: Any, **options: Any) -> Any:
        """Returns a dataset whose leases are transformed, and not what they read."""
        leases = getattr(self.leases, transformation)(*args, **options)
        how = self._has_batches, self.source, self.stages
        return LeasedDataset(leases, self._open, self._whole, *how)

    shuffle = functools.partialmethod(_ordered, "shuffle")
    repeat = functools.partialmethod(_ordered, "repeat")
    take = functools.partialmethod(_ordered, "take")
    skip = functools.partialmethod(_ordered, "skip")
    shard = functools.partialmethod(_ordered, "shard")
    # Of the pipeline of leases, and of what reads them here.
    with_options = functools.partialmethod(_ordered, "with_options")

    @_ending_in_the_program
    def map(
        self, map_func: Callable[..., Nest], *args: object, **options: object
    ) -> tf.data.Dataset:
        """Maps each element, where its lease is read."""
        autograph = tf.__internal__.autograph
        function = autograph.tf_convert(map_func, autograph.control_status_ctx())
        number = 1 + sum(name.startswith("map") for name, _ in self.stages)
        called = getattr(map_func, "__name__", "<lambda>")
        name = f"map {number}" + ("" if called == "<lambda>" else f" ({called})")
        return self._then(
            name,
            lambda examples: examples.map(function, *args, **options),
            self.leases,
            self._has_batches,
        )

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        *args: object,
        **options: object,
    ) -> tf.data.Dataset:
        """Makes a lease of `batch_size`, and a batch of what is read for it."""
        size = batch_size, drop_remainder
        whole = self._whole
        if whole is None or self._has_batches:
            return self._batched(
                "batch", lambda data: data.batch(*size, *args, **options), *size
            )

        def open_batch(*lease: tf.Tensor) -> tf.data.Dataset:
            if drop_remainder:
                lease = tuple(
                    tf.ensure_shape(part, [batch_size, *part.shape[1:]])
                    for part in lease
                )
            return tf.data.Dataset.from_tensors(whole(*lease))

        leases = self.leases.batch(*size)
        return LeasedDataset(leases, open_batch, None, True, self.source)

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Nest = None,
        padding_values: Nest = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> tf.data.Dataset:
        """As `batch`, with examples padded to one shape where they are read."""
        arguments = batch_size, padded_shapes, padding_values, drop_remainder, name
        return self._batched(
            "padded_batch",
            lambda data: data.padded_batch(*arguments),
            batch_size,
            drop_remainder,
        )

    def ragged_batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        *args: object,
        **options: object,
    ) -> tf.data.Dataset:
        """As `batch`, with examples of several shapes in ragged tensors."""
        size = batch_size, drop_remainder
        return self._batched(
            "ragged_batch",
            lambda data: data.ragged_batch(*size, *args, **options),
            *size,
        )

    def _batched(
        self,
        name: str,
        batched: Callable[[tf.data.Dataset], tf.data.Dataset],
        batch_size: int,
        drop_remainder: bool,
    ) -> tf.data.Dataset:
        """Returns a dataset with leases of that size, each read as a batch."""
        if self._has_batches:
            return batched(super())
        leases = self.leases.batch(batch_size, drop_remainder)
        return self._then(name, batched, leases, True)

    def prefetch(self, *args: Any, **options: Any) -> Any:
        """Returns the dataset: leases are read ahead of their turn in any case."""
        return self


def _one(*_: Any) -> tf.Tensor:
    return tf.constant(True)
