"""Building a model before its first step: its variables, optimizer slots and states.

Keras builds a model under a strategy by calling it on symbolic inputs. A model without
`call`, or one whose `train_step` unpacks a batch in its own way, cannot be called so; such
a step is rehearsed. It is traced and never run, and what it would create is created.
"""

import contextlib
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.keras.scope import outside_of_scope
from tfdist.keras.seeds import generator_in_scope

_log = logging.getLogger("tfdist")

TRAIN, TEST = "train", "test"
STAGES = {
    "fit": TRAIN,
    "train_on_batch": TRAIN,
    "evaluate": TEST,
    "test_on_batch": TEST,
}
"""Which of a model's steps each method of the trainer runs."""

_stage: ContextVar[str] = ContextVar("stage", default=TEST)
_applied: ContextVar[list[tuple[Any, list[Any]]] | None] = ContextVar(
    "applied", default=None
)
_MOST_REHEARSALS = 5
_rehearsed: "weakref.WeakKeyDictionary[Any, set[Any]]" = weakref.WeakKeyDictionary()


def stage() -> str:
    """Whether Keras is about to train or to test: TRAIN or TEST."""
    return _stage.get()


@contextlib.contextmanager
def in_stage(stage: str) -> Iterator[None]:
    """Notes which step Keras is about to run."""
    token = _stage.set(stage)
    try:
        yield
    finally:
        _stage.reset(token)


def optimizers_to_apply() -> list[tuple[Any, list[Any]]] | None:
    """The optimizers that the current rehearsal has met, each with its variables.

    Returns:
        A list to append to instead of applying an optimizer; None outside a rehearsal.
    """
    return _applied.get()


def step_of(model: Any, stage: str) -> Callable[[Any], Any]:
    """Returns a model's `train_step` or `test_step`, without a `@tf.function` of its own.

    It is traced as a part of what a replica runs. A function of its own would be traced
    once, and keep what belongs to the replica that it was traced for.
    """
    step = model.train_step if stage == TRAIN else model.test_step
    return getattr(step, "python_function", step)


def build(
    model: Any,
    strategy: tf.distribute.Strategy,
    element_spec: Any,
    rehearse: Callable[[Any], Any],
    *,
    always: bool = False,
) -> None:
    """Builds a model by its `call`, or else by its step.

    Args:
        model: The Keras model.
        strategy: The strategy in whose scope variables are created.
        element_spec: The structure of type specs of a batch; None for what it lacks.
        rehearse: Runs the step that comes next on a symbolic batch.
        always: Whether to rehearse whatever Keras has built.

    Raises:
        Exception: What the step itself raises, if neither way works.
    """
    problem = _build_by_call(model, strategy, element_spec)
    name = "train_step" if stage() == TRAIN else "test_step"
    is_own = name in vars(model) or (
        getattr(type(model), name) is not getattr(keras.Model, name)
    )
    if not (problem or is_own or always):
        return
    if problem and not is_own:
        raise problem
    key = (stage(), id(model.optimizer), id(model._compile_loss))
    if key in _rehearsed.get(model, ()):
        return
    try:
        _rehearse(strategy, element_spec, rehearse)
    except Exception:
        # What Keras could build may be enough; if not, the first step says so.
        if problem or always:
            raise
        _log.debug("could not rehearse the step of %r", model.name, exc_info=True)
    _rehearsed.setdefault(model, set()).add(key)


def _build_by_call(
    model: Any, strategy: tf.distribute.Strategy, element_spec: Any
) -> Exception | None:
    try:
        with warnings.catch_warnings(record=True) as warned, strategy.scope():
            model._symbolic_build(data_batch=element_spec)
    except Exception as error:
        # What Keras warned of, that it cannot build the model, is not the last word.
        return error
    for each in warned:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return None


def _rehearse(
    strategy: tf.distribute.Strategy, element_spec: Any, step: Callable[[Any], Any]
) -> None:
    """Rehearses a step until it creates nothing that the next rehearsal would need."""
    leaves = tf.nest.flatten(element_spec)
    specs = [_of_any_rows(spec) for spec in leaves if spec is not None]

    @tf.autograph.experimental.do_not_convert
    def run(*present: Any) -> None:
        rest = iter(present)
        batch = [None if spec is None else next(rest) for spec in leaves]
        step(tf.nest.pack_sequence_as(element_spec, batch))

    for rehearsal in range(_MOST_REHEARSALS):
        applied: list[tuple[Any, list[Any]]] = []
        token = _applied.set(applied)
        try:
            # In this scope variables are created as it is left, and none is written.
            with strategy.scope(), _deferred_creation() as created, outside_of_scope():
                tf.function(run).get_concrete_function(*specs)
            break
        except Exception:
            # A gradient, say, of a variable that was still to be created.
            if not created or rehearsal == _MOST_REHEARSALS - 1:
                raise
        finally:
            _applied.reset(token)
    for optimizer, variables in applied:
        if not optimizer.built:
            with strategy.scope(), keras.name_scope(optimizer.name):
                optimizer.build(variables)


@contextlib.contextmanager
def _deferred_creation() -> Iterator[list[Any]]:
    """Yields a list that has, once the context is left, the variables it has created."""
    created: list[Any] = []
    with generator_in_scope(), keras.StatelessScope():
        try:
            yield created
        finally:
            created += _tf.variables_to_initialize()


def _of_any_rows(spec: Any) -> Any:
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec
