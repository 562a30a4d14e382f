"""What to write where a step takes the number of rows for that of the whole batch.

One process may know that number while it traces a step: from `x.shape[0]`, or as a constant
of the program. A replica has a part of the rows, and only the step that runs knows of how
many. Its part is not given a fixed size even where all parts have the same: a step that
divides by `x.shape[0]` would divide by the rows of a replica, and in the traced step that
number is a constant like any other.
"""

import contextlib
import re
from collections.abc import Iterator

_NO_NUMBER = re.compile(r"\bNone\b|NoneType|partially known|unknown TensorShape")
_NO_FIXED_SIZE = (
    "Each replica has a part of the batch, and the size of its part is not known before the "
    "step runs. Where the step or a layer reads it from a shape, as in x.shape[0], write "
    "tf.shape(x)[0] or keras.ops.shape(x)[0]"
)


@contextlib.contextmanager
def explained(has_fixed_rows: bool) -> Iterator[None]:
    """Adds to the error of a step that computes with a size of None what to write.

    Args:
        has_fixed_rows: Whether the size is fixed in one process. If not, the step fails
            there, too.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        if has_fixed_rows and _NO_NUMBER.search(text):
            # The same error, so that its type and its stack are those of the program.
            error.args = (f"{text}\n\n{_NO_FIXED_SIZE}.",)
        raise
