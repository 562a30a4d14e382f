"""Proofs of where the steps of a synchronous strategy ran, and what they left."""

import functools
import hashlib
import types
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class ReplicaCounter:
    """A variable of each replica, in which the replica itself counts.

    Args:
        strategy: A strategy whose variables have a copy on each replica.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.devices: set[str] = set()
        with strategy.scope():
            self._count = tf.Variable(
                0,
                dtype=tf.int64,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

    def add_one(self) -> None:
        """Counts, in a replica's part of a step, and nowhere else."""
        ours = tf.distribute.get_strategy() is self._strategy
        if not ours or tf.distribute.in_cross_replica_context():
            return
        # Past the hook of tfdist: eager steps have what it asks for from a rehearsal, in
        # which nothing is counted.
        type(self._count).assign_add(self._count, 1)
        self.devices.add(tf.identity(0).device)

    def counts(self) -> list[int]:
        """The numbers that the replicas of this process counted."""
        copies = self._strategy.experimental_local_results(self._count)
        return [int(copy.numpy()) for copy in copies]

    def total(self) -> int:
        """The number that each of the replicas counted."""
        (count,) = set(self.counts())
        return count


class CallCounter(keras.layers.Layer):
    """Counts, in a variable of each worker, how often the worker ran this layer."""

    def __init__(self, strategy: Any, is_synchronous: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if is_synchronous:
            self.counter = ReplicaCounter(strategy)
        else:
            self.count = tf.Variable(0, dtype=tf.int64, per_worker_variable=True)

    def call(self, x: Any) -> Any:
        if hasattr(self, "counter"):
            self.counter.add_one()
        else:
            self.count.assign_add(1)
        return x

    def total(self) -> int:
        """The number of steps: all workers' together, or each of them's."""
        if hasattr(self, "counter"):
            return self.counter.total()
        return int(sum(self.count.read_all()))


class TrainedModels:
    """Counts the training steps of all models of a strategy, and knows the models.

    Args:
        strategy: A synchronous strategy.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.counter = ReplicaCounter(strategy)
        self.models: list[keras.Model] = []

    def note(self, make_train_function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps `keras.Model.make_train_function`."""

        def make(model: keras.Model, force: bool = False) -> Any:
            ours = model.distribute_strategy is self.strategy
            if ours and model not in self.models:
                self.models.append(model)
                step = self._counted(model.train_step, model)
                object.__setattr__(model, "train_step", step)
            return make_train_function(model, force)

        return make

    def _counted(self, train_step: Any, model: keras.Model) -> Any:
        @functools.wraps(train_step.__func__)
        def counted(model: keras.Model, *args: Any) -> Any:
            self.counter.add_one()
            return train_step(*args)

        return types.MethodType(counted, model)

    def forget(self) -> None:
        """Begins with the next test."""
        self.models.clear()
        self.counter.devices.clear()

    def variables(self) -> list[Any]:
        """The variables whose copies are equal after every step."""
        return [
            variable
            for model in self.models
            for owner in (model, model.optimizer)
            if owner is not None
            for variable in owner.variables
        ]


def copies(variable: keras.Variable) -> tuple[tf.Variable, ...]:
    """The copies that this process has, or reaches, of a variable."""
    value = variable.value
    return getattr(value, "values", (value,))


def assert_copies_are_equal(variables: Iterable[keras.Variable]) -> None:
    for variable in variables:
        first, *others = (copy.numpy() for copy in copies(variable))
        for other in others:
            assert first.tobytes() == other.tobytes(), variable.path


def digest(variables: Iterable[keras.Variable]) -> str:
    """The same for variables of the same bits."""
    values = (np.asarray(copies(variable)[0].numpy()) for variable in variables)
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
