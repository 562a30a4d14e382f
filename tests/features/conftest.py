"""What the tests of features share: proofs of where a step ran and what it wrote."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))

import graph_audit  # noqa: E402

SAMPLES = 64


@pytest.fixture(autouse=True)
def same_weights_in_every_run() -> None:
    """Has a test that compares losses begin from the same weights whenever it runs."""
    keras.utils.set_random_seed(0)


@pytest.fixture
def regression() -> tuple[np.ndarray, np.ndarray]:
    """64 samples of 4 numbers, and a linear function of each: 8 batches of 8."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
    return x, x @ np.float32([[1.0], [-2.0], [3.0], [0.5]])


@pytest.fixture
def classes(regression) -> tuple[np.ndarray, np.ndarray]:
    """The same samples, of three classes."""
    x, y = regression
    return x, np.digitize(y[:, 0], [-2.0, 2.0]).astype("int32")


@pytest.fixture
def runs_on_workers(strategy) -> Callable[[int], Any]:
    """Asserts that the workers themselves counted so many training steps."""

    @contextlib.contextmanager
    def counted(steps: int) -> Iterator[None]:
        before = sum(strategy.worker_report().steps)
        yield
        assert sum(strategy.worker_report().steps) - before == steps

    return counted


class CallCounter(keras.layers.Layer):
    """Counts, in a variable of each worker, how often the worker ran this layer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = tf.Variable(0, dtype=tf.int64, per_worker_variable=True)

    def call(self, x: Any) -> Any:
        self.count.assign_add(1)
        return x

    def total(self) -> int:
        return int(sum(self.count.read_all()))


@pytest.fixture
def call_counter(strategy) -> CallCounter:
    with strategy.scope():
        return CallCounter()


@dataclass
class Sent:
    """What was sent to the workers during a test.

    Attributes:
        functions: Each once.
        problems: What of their graphs can lose an update.
    """

    functions: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@pytest.fixture
def sent(request, strategy, monkeypatch) -> Sent:
    marks = request.node.iter_markers("sets_own_value")
    allowed = [mark.args[0] for mark in marks]
    sent = Sent()
    schedule = strategy.coordinator.schedule

    def spy(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function not in sent.functions:
            sent.functions.append(function)
            if hasattr(function, "graph"):
                sent.problems += graph_audit.problems(function, allowed)
        return schedule(function, *args, **kwargs)

    monkeypatch.setattr(strategy.coordinator, "schedule", spy)
    return sent


@pytest.fixture(autouse=True)
def no_step_can_lose_an_update(request) -> Iterator[None]:
    """Audits the graph of every step of every test."""
    if "strategy" not in request.fixturenames:
        yield
        return
    sent = request.getfixturevalue("sent")
    yield
    assert sent.problems == []
