"""Advice for steps that take the static number of rows for the whole batch's.

One process may know that number while it traces a step: from `x.shape[0]`, or as a constant
of the program. A replica has a part of the rows, and only the step that runs knows of how
many. Its part is not given a fixed size even where all parts have the same: a step that
divides by `x.shape[0]` would divide by the rows of a replica, and in the traced step that
number is a constant like any other.
"""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from tfdist.cluster.liveness.step_error import is_about_shapes
from tfdist.synchronous.reader.indivisible import OF_THE_WHOLE

_NO_NUMBER = re.compile(r"\bNone\b|NoneType|partially known|unknown TensorShape")
# Keras's check of a layer's input shows the whole shape for any error.
_OF_ANOTHER_AXIS = re.compile(
    r"incompatible with the layer: expected (ndim|min_ndim|max_ndim|axis (?!0\b))"
)
# Keras lists the arguments of a layer below any error; many of them are None.
_ARGUMENTS = "Arguments received by"
_NO_FIXED_SIZE = (
    "Each replica has a part of the batch, and the size of its part is not known before the "
    "step runs. Where the step or a layer reads it from a shape, as in x.shape[0], write "
    "tf.shape(x)[0] or keras.ops.shape(x)[0]"
)


def _is_about_rows(text: str) -> bool:
    """Returns True if an error may come from a number of rows that is not known."""
    what = text.partition(_ARGUMENTS)[0]
    return bool(_NO_NUMBER.search(what)) and not _OF_ANOTHER_AXIS.search(what)


@contextlib.contextmanager
def explained(has_fixed_rows: bool) -> Iterator[None]:
    """Adds advice to the error of a step about a size or a shape.

    Args:
        has_fixed_rows: Whether a static size is known in one process. If not, a step that
            needs it fails there, too.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        if has_fixed_rows and _is_about_rows(text):
            # The same error, so that its type and its stack are those of the program.
            error.args = (f"{text}\n\n{_NO_FIXED_SIZE}.",)
        raise
    except tf.errors.InvalidArgumentError as error:
        if not is_about_shapes(error.message):
            raise
        text = f"{error.message}\n\nIf one of these sizes {OF_THE_WHOLE}."
        same = type(error)(error.node_def, error.op, text)
        raise same.with_traceback(error.__traceback__) from None
