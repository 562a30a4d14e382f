"""The lookup tables of a model that were made outside of the scope.

A layer makes its table when it is adapted, and then the chief alone has it. Such a table
does not change any more, so that each worker can have one of the same content.
"""

from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.parameter_server.fit.refusals import AsynchronousTrainingError


def give_to_workers(model: Any) -> None:
    """Makes the tables of a model, and of its layers, again in its strategy's scope.

    Cost: each table once over the network to every worker, and only the first time.

    Args:
        model: A Keras model in the scope of a `ParameterServerStrategy`.

    Raises:
        AsynchronousTrainingError: If a table was made before the strategy.
    """
    for owner in (model, *_tf.flatten_layers(model)):
        for name, table in list(vars(owner).items()):
            if _is_of_the_chief(table) and not _is_empty(table, owner, name):
                with model.distribute_strategy.scope():
                    setattr(owner, name, _copy(table))


def _is_of_the_chief(value: Any) -> bool:
    is_table = isinstance(value, tf.lookup.StaticHashTable)
    return is_table and not getattr(value, "is_distributed_table", False)


def _is_empty(table: tf.lookup.StaticHashTable, owner: Any, name: str) -> bool:
    try:
        return int(table.size()) == 0
    except tf.errors.InvalidArgumentError:
        raise AsynchronousTrainingError(
            f"the table {owner.path or owner.name}.{name} was made before the strategy, "
            "and lost when this process joined its cluster. Construct the strategy "
            "first; then make the layer, and adapt it"
        ) from None


def _copy(table: tf.lookup.StaticHashTable) -> tf.lookup.StaticHashTable:
    content = tf.lookup.KeyValueTensorInitializer(*table.export())
    return tf.lookup.StaticHashTable(content, table.default_value)
