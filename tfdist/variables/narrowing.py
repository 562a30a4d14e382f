"""Restricts an update to a whole weight and its slots, one shard, or some rows.

An optimizer is written for whole variables: it reads a weight and its slots, and
writes them. To let the same code run beside each shard of a partitioned weight, or
on the rows that a step has looked up, reads and writes of the weight and its slots
are narrowed while the update runs.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist._refusal import RefusalError

# Context variables, and not arguments, since Keras's optimizer is between the caller that
# narrows and the variable that is read or written, and passes nothing on.
_shard: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "shard", default=None
)
_rows: contextvars.ContextVar[tuple[Any, tf.Tensor] | None] = contextvars.ContextVar(
    "rows", default=None
)


@dataclass
class _Step:
    """A step that is being traced.

    Attributes:
        graph: Where. During the trace, the default graph may be that of a loop's body.
        has_tape: Whether it has recorded a gradient, and so may write what it reads.
        old: What to say of a variable that it has written, and of which a `tf.function`
            would use an old value if it were called again; "" if there is none.
    """

    graph: tf.Graph
    has_tape: bool = False
    old: str = ""


class OutsideReadError(RefusalError):
    """A part of a step would use an old value of a variable that the step has written."""


_step: contextvars.ContextVar[_Step | None] = contextvars.ContextVar(
    "step", default=None
)
_tapes: contextvars.ContextVar[tuple[tf.Graph, ...]] = contextvars.ContextVar(
    "tapes", default=()
)


def tracing_a_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that `graph_to_read_in` finds the graph it is traced in."""

    def traced(*args: Any, **kwargs: Any) -> Any:
        token = _step.set(_Step(tf.compat.v1.get_default_graph()))
        try:
            return step(*args, **kwargs)
        finally:
            _step.reset(token)

    return traced


def tape_begins() -> None:
    """Notes that a gradient tape records from now on.

    Raises:
        OutsideReadError: If a `tf.function` may be called again, with an old value.
    """
    if (step := _step.get()) is not None and step.old:
        raise OutsideReadError(step.old)
    _tapes.set((*_tapes.get(), tf.compat.v1.get_default_graph()))
    if step is not None:
        step.has_tape = True


def written_after_function(what: str) -> None:
    """Notes that a function of the step uses what the step has written now.

    Args:
        what: What to say if it may be called again.
    """
    if (step := _step.get()) is not None:
        step.old = what


def tape_ends() -> None:
    """Notes that the last tape records no more."""
    _tapes.set(_tapes.get()[:-1])


def graph_to_read_in() -> tf.Graph:
    """Returns the graph in which to read a partitioned variable during a trace.

    TensorFlow differentiates a loop's body with respect to the tensors that it captures. So a
    body within a tape has to capture the value, and not a handle: it is read in the graph of
    the tape. A step without a tape reads each variable once, in its own graph. But what comes
    after a tape, such as an update, reads where it is: it may have written before, in the
    same body.
    """
    step = _step.get()
    wanted = list(_tapes.get())
    if step is not None and not step.has_tape:
        wanted = [step.graph]
    current = tf.compat.v1.get_default_graph()
    graphs, graph = [current], getattr(current, "outer_graph", None)
    while graph is not None:
        graphs.append(graph)
        graph = getattr(graph, "outer_graph", None)
    for each in wanted:
        if any(each is graph for graph in graphs):
            return each
    return current


@contextlib.contextmanager
def of_shard(index: int) -> Iterator[None]:
    """Narrows partitioned variables to their shard of this index."""
    token = _shard.set(index)
    try:
        yield
    finally:
        _shard.reset(token)


@contextlib.contextmanager
def of_rows(weight: Any, rows: tf.Tensor) -> Iterator[None]:
    """Narrows a weight on a ps, and the slots beside it, to some of their rows.

    Args:
        weight: A `ParameterServerVariable`.
        rows: The indices of rows, each once; an integer vector.
    """
    token = _rows.set((weight, rows))
    try:
        yield
    finally:
        _rows.reset(token)


def shard_seen() -> int | None:
    """Returns the index of the shard that the current update is narrowed to, or None."""
    return _shard.get()


def rows_seen(variable: Any, beside: Any) -> tf.Tensor | None:
    """Returns the rows of a variable that the current update is narrowed to, or None.

    Args:
        variable: The variable that is read or written.
        beside: The weight that it is a slot of, if it is one.
    """
    seen = _rows.get()
    # The update also reads variables without these rows, such as the step counter.
    if seen is None or (variable is not seen[0] and beside is not seen[0]):
        return None
    return seen[1]
