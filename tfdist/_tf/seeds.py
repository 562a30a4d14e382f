"""The seeds of Keras and TensorFlow that no public function gives back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keras.src.backend.common import global_state
from tensorflow.python.eager import context


@contextmanager
def global_seed_generator_kept() -> Iterator[None]:
    """Leaves Keras's global seed generator as it was, absent if it was absent."""
    name = "global_seed_generator"
    kept = global_state.get_global_attribute(name)
    try:
        yield
    finally:
        global_state.set_global_attribute(name, kept)


def global_seed_generator() -> Any:
    """Returns what `keras.random` draws from without a seed, or None."""
    return global_state.get_global_attribute("global_seed_generator")


def set_global_seed_generator(generator: Any) -> None:
    """Sets what `keras.random` draws from without a seed; None to have one made."""
    global_state.set_global_attribute("global_seed_generator", generator)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Gives operations made meanwhile seeds that follow from this one."""
    eager = context.context()
    kept = eager._seed, getattr(eager, "_rng", None)
    # TensorFlow's own setter also empties the cache of kernels, and waits, with the
    # lock of the interpreter, for remote tasks that may be gone.
    eager._seed, eager._rng = seed, random.Random(seed)
    try:
        yield
    finally:
        eager._seed, eager._rng = kept
