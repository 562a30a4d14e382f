"""The rehearsal of a step: traced but never run, to create the variables it would create."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import setting
from tfdist._support.types import Nest
from tfdist.keras.batch_structure import of_any_rows
from tfdist.keras.optimizers import replaced_applies
from tfdist.keras.own_traces import own_trace
from tfdist.keras.scope import outside_of_scope
from tfdist.keras.seeds import generator_in_scope
from tfdist.keras.step_writes import NotingScope, noting

# Each rehearsal can create variables that the next one needs. The limit stops a step
# that creates new variables on every trace.
_MOST_REHEARSALS = 5

_applied: ContextVar[list[tuple[keras.Optimizer, list[keras.Variable]]] | None] = (
    ContextVar("applied", default=None)
)


def optimizers_to_apply() -> list[tuple[keras.Optimizer, list[keras.Variable]]] | None:
    """Returns the optimizers, with their variables, that a rehearsal would apply.

    Append to the list instead of applying an optimizer. None outside a rehearsal.
    """
    return _applied.get()


def rehearse_until_built(
    strategy: tf.distribute.Strategy,
    element_spec: Nest,
    step: Callable[[Nest], Nest],
    any_rows: bool,
    optimizers: Iterable[keras.Optimizer],
) -> dict[int, str]:
    """Rehearses a step until it creates no variable that the next rehearsal needs.

    `optimizers` are those that it may apply. Returns the paths of the variables that it
    writes, by identity.
    """
    run, specs = _of_present_leaves(step, element_spec)
    if any_rows:
        specs = [of_any_rows(spec) for spec in specs]
    for rehearsal in range(_MOST_REHEARSALS):
        applied: list[tuple[keras.Optimizer, list[keras.Variable]]] = []
        try:
            # Keras defers the creation of variables to the end of a `StatelessScope`,
            # and writes none inside it. The scope of the strategy applies to the
            # creation only, not to the trace.
            with (
                setting(_applied, applied),
                strategy.scope(),
                _deferred_creation() as created,
                outside_of_scope(),
                own_trace(),
                noting() as writes,
                _left_out(optimizers, applied) as left_out,
            ):
                tf.function(run).get_concrete_function(*specs)
            is_complete = not left_out
        except Exception:
            # The step may have used a variable that did not exist yet, for a gradient,
            # say. It exists in the next rehearsal.
            is_complete = not (created or left_out)
            if is_complete or rehearsal == _MOST_REHEARSALS - 1:
                raise
        # Not built inside the trace: slots go next to variables that may not have
        # existed there.
        for optimizer, variables in applied:
            build_optimizer(strategy, optimizer, variables)
        if is_complete:
            break
    return writes


def _of_present_leaves(
    step: Callable[[Nest], Nest], element_spec: Nest
) -> tuple[Callable[..., None], list[tf.TypeSpec]]:
    """Returns a step that takes the leaves that a batch has, and the specs of these."""
    leaves = tf.nest.flatten(element_spec)

    @tf.autograph.experimental.do_not_convert
    def run(*present: Nest) -> None:
        rest = iter(present)
        batch = [None if spec is None else next(rest) for spec in leaves]
        step(tf.nest.pack_sequence_as(element_spec, batch))

    return run, [spec for spec in leaves if spec is not None]


@contextlib.contextmanager
def _left_out(
    optimizers: Iterable[keras.Optimizer],
    applied: list[tuple[keras.Optimizer, list[keras.Variable]]],
) -> Iterator[list[keras.Optimizer]]:
    """Notes the variables of optimizers that are not built, and leaves their `apply` out.

    An `apply` of a class of its own may build the optimizer, or use what that makes.
    Yields a list of the optimizers that were left out.
    """
    left_out = []

    def apply(
        optimizer: keras.Optimizer, _method: str, grads: list[Any], variables: Any
    ) -> None:
        applied.append((optimizer, list(variables)))
        left_out.append(optimizer)

    with replaced_applies((each for each in optimizers if not each.built), apply):
        yield left_out


@contextlib.contextmanager
def _deferred_creation() -> Iterator[list[keras.Variable]]:
    """Defers creating variables; yields a list that has them after the context."""
    created: list[keras.Variable] = []
    # A symbolic scope: `losses` would ask a stateless one for the values of weights.
    with generator_in_scope(), NotingScope(), keras.SymbolicScope():
        try:
            yield created
        finally:
            created += _tf.variables_to_initialize()


def build_optimizer(
    strategy: tf.distribute.Strategy,
    optimizer: keras.Optimizer,
    variables: list[keras.Variable],
) -> None:
    """Creates the slots of an optimizer, if there are none yet."""
    if not optimizer.built:
        with strategy.scope():
            optimizer.build(variables)
