"""Traces a model's step for workers, which need objects that only the chief has.

A preprocessing layer creates its table in `adapt`, on the chief only. The table never
changes after that, so each worker can have a copy.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.building import trace_with_state
from tfdist.parameter_server.steps.refusals import (
    check_can_be_compiled,
    check_captures,
    check_sets,
)
from tfdist.parameter_server.steps.worker_function import WorkerFunction


def trace_for_workers(
    model: keras.Model, structure: BatchStructure, make: Callable[[], WorkerFunction]
) -> WorkerFunction:
    """Returns the result of `make` for a model, whose tables the workers have by then.

    Raises:
        AsynchronousTrainingError: If the step uses something that only the chief has, sets
            what other workers add to, or has XLA compile what it cannot.
    """
    # Before the trace, which captures the tables that there are.
    _give_tables(model)
    strategy = model.distribute_strategy
    function = trace_with_state(model, structure.specs, make)
    # Before a worker runs any of it.
    check_captures(function.step.function, model)
    check_sets(function.step.function.graph, strategy, model)
    if model.jit_compile:
        check_can_be_compiled(function.step.function.graph, strategy)
        function.step.is_compiled = True
    return function


def _give_tables(model: keras.Model) -> None:
    """Recreates the tables of a model and its layers in its strategy's scope.

    Cost: sends each table to every worker, the first time only.

    Raises:
        LostVariablesError: If a table was created before the strategy.
    """
    for owner in (model, *_tf.flatten_layers(model)):
        for name, table in list(vars(owner).items()):
            if _is_on_chief(table) and int(table.size()) != 0:
                # In the scope, TensorFlow makes a copy on every worker.
                with model.distribute_strategy.scope():
                    setattr(owner, name, _copy(table))


def _is_on_chief(value: Any) -> bool:
    is_table = isinstance(value, tf.lookup.StaticHashTable)
    return is_table and not getattr(value, "is_distributed_table", False)


def _copy(table: tf.lookup.StaticHashTable) -> tf.lookup.StaticHashTable:
    content = tf.lookup.KeyValueTensorInitializer(*table.export())
    return tf.lookup.StaticHashTable(content, table.default_value)
