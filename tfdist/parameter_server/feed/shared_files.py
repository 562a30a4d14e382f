"""Checks that every worker has the chief's files, at the same paths."""

import contextlib
import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.data.errors import SourceError
from tfdist.data.source_files import Stamp
from tfdist.parameter_server.feed.worker_calls import on_workers
from tfdist.parameter_server.seam.ps_strategy import PsStrategy

# Files are compared by size, and by this many bytes at the beginning and at the end.
_MOST_BYTES = 1024
_AT_ONCE = 16
_BUFFER_BYTES = 4096


class SharedFiles:
    """Compares files, and remembers those that all workers have.

    Cost: the chief and each worker read 2 KiB of each file that is new or has changed,
    and each worker sends 8 bytes. The chief alone asks for other files' size and time.
    """

    def __init__(self, strategy: PsStrategy) -> None:
        self._strategy = strategy
        self._shared: set[Stamp] = set()
        self._look: Any = None

    def why_not(self, paths: Iterable[str]) -> str:
        """Returns why workers cannot read some files, or "" if each of them can."""
        if self._strategy.presence.is_elastic:
            return "a worker that comes later may not have its files"
        new = []
        for path in paths:
            # One that is missing is told when its turn comes.
            with contextlib.suppress(SourceError):
                stamp = Stamp.of(path)
                if not os.path.isfile(path):
                    return f"{stamp.path} is no regular file"
                # No lease is of an empty file.
                if stamp.size and stamp not in self._shared:
                    new.append(stamp)
        problem = self._ask(new) if new else ""
        if not problem:
            self._shared.update(new)
        return problem

    def _ask(self, stamps: list[Stamp]) -> str:
        """Returns which file a worker has not as the chief has it, or ""."""
        if self._look is None:
            text, number = (tf.TensorSpec([None], t) for t in (tf.string, tf.int64))
            # Traced once: every task has to answer before it is known there.
            traced = tf.function(_fingerprints, autograph=False)
            self._look = traced.get_concrete_function(text, number)
        names = tf.constant([os.fsencode(each.path) for each in stamps])
        sizes = tf.constant([each.size for each in stamps], tf.int64)
        expected = dict(self._look(names, sizes).numpy().tolist())
        workers = range(self._strategy.num_workers)
        answers = on_workers(
            self._strategy,
            workers,
            lambda: dict(self._look(names, sizes).numpy().tolist()),
        )
        for i, stamp in enumerate(stamps):
            for worker in workers:
                found = answers[worker]
                # A worker that is lost has none.
                has = found.get(i) if isinstance(found, dict) else None
                if has is None or has != expected.get(i):
                    return f"worker {worker} has not the chief's {stamp.path}"
        return ""


def _fingerprints(names: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Returns the index of each file which has exactly that size, and a number."""
    files = tf.data.Dataset.from_tensor_slices((names, sizes)).enumerate()
    numbers = files.map(_fingerprint, num_parallel_calls=_AT_ONCE).ignore_errors()
    # One more, for there has to be one.
    numbers = numbers.concatenate(
        tf.data.Dataset.from_tensors(tf.constant([-1, 0], tf.int64))
    )
    return numbers.batch(tf.size(names, tf.int64) + 1).get_single_element()


def _fingerprint(index: tf.Tensor, file: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    name, size = file
    length = tf.minimum(size, _MOST_BYTES)
    first = _bytes(name, tf.constant(0, tf.int64), length, size - length)
    last = _bytes(name, size - length, length, tf.constant(0, tf.int64))
    return tf.stack([index, tf.strings.to_hash_bucket_fast(first + last, tf.int64.max)])


def _bytes(
    name: tf.Tensor, before: tf.Tensor, length: tf.Tensor, behind: tf.Tensor
) -> tf.Tensor:
    variant = tf.raw_ops.FixedLengthRecordDatasetV2(
        filenames=name[tf.newaxis],
        header_bytes=before,
        record_bytes=length,
        footer_bytes=behind,
        buffer_size=_BUFFER_BYTES,
        compression_type="",
    )
    strings = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    # A file of another size has a part of that length, too few, or more than one.
    return tf.ensure_shape(strings.batch(2).get_single_element(), [1])[0]
