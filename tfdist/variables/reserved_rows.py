"""Growing tables, whose rows are mostly reserved and absent: no one reads all."""

from typing import Any

import keras

from tfdist import _tf
from tfdist._support.errors import RefusalError


class ReservedRowsError(RefusalError):
    """A table that grows was read or written whole."""


def refusal_of(name: str) -> ReservedRowsError:
    """Returns the error for a table, a slot of it, or a shard of one."""
    return ReservedRowsError(
        f"{name} is a table that grows: its rows are reserved, and are read "
        "and written by the ids that have them. For its values, use the layer's "
        "export(), lookup() and upsert(), or a checkpoint or .keras file; for a "
        "SavedModel, tfdist.embedding.frozen(model). An optimizer or an option that reads "
        "a whole weight (Lamb, Muon, Adafactor, weight decay, use_ema, "
        "a constraint, LoRA) cannot train it: use Adagrad, SGD or Adam"
    )


def growth_of(variable: Any) -> Any:
    """Returns the growing table whose rows a variable has on ps, or None."""
    # Not by getattr: what synchronous workers sum up when it is read, such as a metric, looks
    # for the attribute in that sum, and waits for the other workers.
    return vars(_tf.value_of(variable)).get("growth")


def tables_that_grow(model: keras.Model) -> dict[str, Any]:
    """Returns the growing tables of a model's weights on ps, by the weights' paths."""
    found = {weight.path: growth_of(weight) for weight in model.weights}
    return {path: growth for path, growth in found.items() if growth is not None}


def warn_of_full_tables(model: keras.Model) -> None:
    """Asks each growing table for its state; a full one warns, once."""
    for table in tables_that_grow(model).values():
        table.states()


def refuse_tables_that_grow(model: keras.Model) -> None:
    """Checks that no weight is a table that grows.

    Raises:
        ReservedRowsError: If one is.
    """
    for path in tables_that_grow(model):
        raise refusal_of(path)
