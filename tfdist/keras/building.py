"""Builds a model before its first step: variables, optimizer slots and states.

Under a strategy, Keras builds a model by calling it on symbolic inputs, all of them dense.
That fails for a model without `call`, for one whose `train_step` unpacks a batch in its own
way, and for one whose `call` needs ragged or sparse inputs. The step of such a model is
rehearsed; see `tfdist.keras.rehearsal`.
"""

import contextlib
import functools
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.context import having, setting
from tfdist._support.errors import RefusalError, advise
from tfdist._support.types import Nest
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.driver import driver_of
from tfdist.keras.optimizers import is_overridden, optimizers_of
from tfdist.keras.own_traces import traced_alone
from tfdist.keras.rehearsal import (
    build_optimizer,
    optimizers_to_apply,
    rehearse_until_built,
)
from tfdist.keras.seeds import generator_in_scope
from tfdist.keras.step_writes import check_writes, noting

_log = logging.getLogger("tfdist")

TRAIN, TEST, PREDICT = "train", "test", "predict"
STAGES = {
    "fit": TRAIN,
    "train_on_batch": TRAIN,
    "evaluate": TEST,
    "test_on_batch": TEST,
    "predict": PREDICT,
    "predict_on_batch": PREDICT,
}
"""The step of a model that each trainer method runs."""

# A context variable, so that a thread that trains one model does not affect another
# thread that evaluates a second one.
_stage: ContextVar[str] = ContextVar("stage", default=TEST)
# In Keras's words, of a layer that was built for inputs of another shape.
_MISFIT = "incompatible with the layer"
_CALLED_OTHERWISE = (
    "{} was built by calling it with the first part of a batch, but its step calls this "
    "layer with other inputs. Give the layer an Input, or remove the model's `call`: the "
    "step is then traced for its variables"
)
_writes: "weakref.WeakKeyDictionary[keras.Model, dict[str, dict[int, str]]]" = (
    weakref.WeakKeyDictionary()
)
_rehearsed: "weakref.WeakKeyDictionary[keras.Model, dict[str, Any]]" = (
    weakref.WeakKeyDictionary()
)
_makes_state: "weakref.WeakSet[keras.Model]" = weakref.WeakSet()
"""Models whose step has created a variable while it was traced."""


def stage() -> str:
    """Returns the kind of step that Keras is about to run: TRAIN, TEST or PREDICT."""
    return _stage.get()


def in_stage(stage: str) -> contextlib.AbstractContextManager[None]:
    """Records which step Keras is about to run."""
    return setting(_stage, stage)


def step_of(model: keras.Model, stage: str) -> Callable[[Nest], Nest]:
    """Returns a model's step of a stage, unwrapped from a `@tf.function`.

    The step is traced as part of the function that each replica runs. A `tf.function`
    of the user's would be traced once, and keep the state of the replica it was traced
    for.
    """
    step = getattr(model, f"{stage}_step")
    step = traced_alone(getattr(step, "python_function", step))

    @functools.wraps(step)
    def compared(*args: object, **kwargs: object) -> Any:
        # In a rehearsal, which notes the writes itself and may create variables.
        if optimizers_to_apply() is not None:
            return step(*args, **kwargs)
        with noting() as traced, _creating_nothing(model):
            results = step(*args, **kwargs)
        check_writes(_writes.get(model, {}).get(stage, {}), traced, step.__name__)
        return results

    return compared


def build(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    element_spec: Nest,
    rehearse: Callable[[Nest], Nest],
    *,
    always: bool = False,
    any_rows: bool = False,
) -> None:
    """Builds a model by its `call`, or by rehearsing its step if that fails.

    `element_spec` has None for what a batch lacks. With `always`, it rehearses even if
    Keras could build the model. With `any_rows`, a step gets a part of the batch, even
    of a batch of fixed size.

    Raises:
        Exception: The error of the step itself, if neither way works.
    """
    compiled = _compiled(model)
    makes_state = model in _makes_state
    if _rehearsed.get(model, {}).get(stage()) == compiled and not makes_state:
        return
    _makes_state.discard(model)
    was_built = bool(model.weights)
    problem = None
    if stage() != PREDICT:
        problem = _build_by_call(model, strategy, element_spec)
    has_other_kinds = BatchStructure(element_spec).has_varying_rows
    if problem and not has_other_kinds and not _has_own_step(model):
        raise problem
    is_needed = always or makes_state or bool(problem) or _may_use_more(model)
    # Writes of an earlier `compile` may be of metrics that are gone.
    _writes.get(model, {}).pop(stage(), None)
    if is_needed:
        try:
            writes = rehearse_until_built(
                strategy, element_spec, rehearse, any_rows, optimizers_of(model)
            )
            _writes.setdefault(model, {})[stage()] = writes
        except Exception as error:
            is_misfit = not (problem or was_built) and _is_misfit(error, model)
            # Keras may have built enough. If not, the first step raises the error.
            if problem or always or is_misfit:
                raise
            _log.debug("could not rehearse the step of %r", model.name, exc_info=True)
    if stage() == TRAIN and model.optimizer is not None:
        build_optimizer(strategy, model.optimizer, model.trainable_variables)
    if is_needed:
        _rehearsed.setdefault(model, {})[stage()] = compiled


def _is_misfit(error: Exception, model: keras.Model) -> bool:
    """Returns True, and advises, if a layer was built for inputs of another shape."""
    is_misfit = _MISFIT in str(error)
    if is_misfit:
        advise(error, _CALLED_OTHERWISE.format(model.name))
    return is_misfit


def _compiled(model: keras.Model) -> tuple[Any, ...]:
    """Returns references to what `compile` replaces, which may need new variables.

    Weak ones: they equal no later object, which may have the address of one that is gone.
    """
    parts = (model.optimizer, model._compile_loss)
    return tuple(None if each is None else weakref.ref(each) for each in parts)


def trace_with_state(
    model: keras.Model, element_spec: Nest, trace: Callable[[], Nest]
) -> Any:
    """Traces a step of a model, whose state may be made when it is first called.

    `keras.random` makes a generator where a layer first draws without a seed, which may
    be in training only. To rehearse each step for that would cost each program a trace;
    so a trace that creates a variable is given up, and follows a rehearsal.
    """
    try:
        return trace()
    except Exception:
        if model not in _makes_state:
            raise
    driver = driver_of(model.distribute_strategy)
    assert driver
    driver.build(model, element_spec)
    return trace()


@contextlib.contextmanager
def _creating_nothing(model: keras.Model) -> Iterator[None]:
    """Stops a trace of a step where it would create a variable."""

    def stop(create: Callable[..., Any], **kwargs: object) -> Any:
        if tf.executing_eagerly():
            return create(**kwargs)
        # Kept here, since Keras raises errors of its own in the place of a layer's.
        _makes_state.add(model)
        raise RuntimeError(
            f"a step of {model.name!r} creates the variable {kwargs.get('name')!r} each "
            "time it is traced. Create it once, in __init__ or build of a layer"
        )

    with generator_in_scope(), tf.variable_creator_scope(stop):
        yield


def _may_use_more(model: keras.Model) -> bool:
    """Returns True if a step may use variables that `call` did not create.

    Examples are variables of a second optimizer, or of layers that only training uses.
    """
    unbuilt = (not layer.built for layer in _tf.flatten_layers(model))
    return _has_own_step(model) or any(unbuilt)


def _has_own_step(model: keras.Model) -> bool:
    return is_overridden(model, f"{stage()}_step")


def _build_by_call(
    model: keras.Model, strategy: tf.distribute.Strategy, element_spec: Nest
) -> Exception | None:
    try:
        with (
            _holding_warnings_back() as warned,
            strategy.scope(),
            _left_unbuilt(model.optimizer),
        ):
            model._symbolic_build(data_batch=element_spec)
    except Exception as error:
        # Drop the warnings that Keras could not build the model: a rehearsal may. Keras
        # raises an error of its own in the place of one that refuses the program.
        cause = error.__context__
        return cause if isinstance(cause, RefusalError) else error
    for warning in warned:
        warnings.showwarning(*warning)
    return None


@contextlib.contextmanager
def _holding_warnings_back() -> Iterator[list[tuple[Any, ...]]]:
    """Yields the warnings that are given meanwhile, as `warnings.showwarning` takes them.

    `warnings.catch_warnings` would have Python forget which warnings it has shown, and a
    model is built in each `fit` and `evaluate`.
    """
    held: list[tuple[Any, ...]] = []

    def hold(*warning: Any) -> None:
        held.append(warning)

    with having(warnings, showwarning=hold):
        yield held


def _left_unbuilt(
    optimizer: keras.Optimizer,
) -> contextlib.AbstractContextManager[None]:
    """Keeps Keras from building an optimizer, whose variables may not all exist yet."""
    if optimizer is None or optimizer.built:
        return contextlib.nullcontext()
    return having(optimizer, built=True)
