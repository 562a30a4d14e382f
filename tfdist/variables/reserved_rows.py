"""The refusal to read all rows of a table that grows: most are reserved, and not there."""

from tfdist._refusal import RefusalError


class ReservedRowsError(RefusalError):
    """A table that grows was read or written whole."""


def refusal_of(name: str) -> ReservedRowsError:
    """Returns the error for a table, a slot of it, or a shard of one."""
    return ReservedRowsError(
        f"{name} is a table that grows: its rows are reserved, and are read "
        "and written by the ids that have them. For its values, use the layer's "
        "export(), lookup() and upsert(). An optimizer or an option that reads "
        "a whole weight (Lamb, Muon, Adafactor, weight decay, use_ema, "
        "a constraint, LoRA) cannot train it: use Adagrad, SGD or Adam"
    )
