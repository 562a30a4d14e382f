"""Lists the variables of a model without allocating any of them.

The function that builds the model runs in a TensorFlow graph that is never executed.
In that graph a variable is a node with a shape and a dtype, regardless of its size, and so
are optimizer slots, metrics and seeds.
"""

import dataclasses
import fnmatch
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _tf
from tfdist.planning.arguments import NotAModelError, UnknownSizesError
from tfdist.planning.recording import recording
from tfdist.planning.weight import Weight


def weights_of(
    build_model: Callable[[], keras.Model],
    *,
    optimizer: keras.optimizers.Optimizer | str | None = None,
    batch: Any = None,
    lookups: Mapping[str, int] | None = None,
) -> list[Weight]:
    """Lists what `build_model` and a first step of `fit` create, in that order.

    Arguments and errors are those of `tfdist.plan`. Restores the random state. Cost:
    the time to build the model; no memory for its variables.
    """
    if not callable(build_model) or isinstance(build_model, keras.Model):
        raise NotAModelError(
            "build_model must be a function without arguments that returns a compiled "
            f"model; received {build_model!r}"
        )
    _check_lookups(lookups)
    remake = None if optimizer is None else _remake(optimizer)
    with _random_state_kept(), tf.Graph().as_default(), recording() as created:
        model = build_model()
        if not isinstance(model, keras.Model):
            raise NotAModelError(
                f"build_model returns a keras.Model; {_name(build_model)} returned "
                f"{model!r}"
            )
        kept = _finish(model, remake, batch)
        divisible = {id(weight.value) for weight in model.weights}
        weights = created.weights(divisible)
        del kept
    return _with_lookups(weights, lookups or {})


@contextmanager
def _random_state_kept() -> Iterator[None]:
    # Keras draws the seeds of layers and initializers from Python's generator.
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with _tf.global_seed_generator_kept():
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


def _remake(optimizer: Any) -> Callable[[], keras.optimizers.Optimizer]:
    """Returns a function that creates an optimizer like this one."""
    optimizer = keras.optimizers.get(optimizer)
    # Built here, the caller's own optimizer would keep variables of a graph that is
    # thrown away.
    config = optimizer.get_config()
    return lambda: type(optimizer).from_config(config)


def _finish(model: keras.Model, remake: Callable[[], Any] | None, batch: Any) -> Any:
    """Creates what the first step of `fit` would create.

    Returns the new optimizer, if any: keep it, or its variables are no longer in use.
    """
    if remake is None and not model.compiled:
        raise UnknownSizesError(
            f"the model {model.name!r} must be compiled: compile it in build_model, or "
            "pass the optimizer of your training loop as optimizer="
        )
    if remake is not None and model.compiled:
        raise UnknownSizesError(
            f"the model {model.name!r} is compiled with an optimizer already: give "
            "optimizer= only for a model that is not compiled"
        )
    if batch is None and not model.built:
        raise UnknownSizesError(
            f"the model {model.name!r} must be built: start it with keras.Input, call "
            "model.build(shape), or give the shapes of a batch, batch=(x, y)"
        )
    if batch is not None:
        batch = _symbolic_batch(batch)
    if remake is not None:
        if batch is not None and not model.built:
            model(keras.utils.unpack_x_y_sample_weight(batch)[0])
        optimizer = remake()
        optimizer.build(model.trainable_variables)
        return optimizer
    guessed = batch is None
    try:
        model._symbolic_build(data_batch=_guess_batch(model) if guessed else batch)
    except Exception as error:
        # Any error, since losses and metrics are the user's code.
        source = (
            "targets guessed from its outputs (give the shapes of a batch, batch=(x, y))"
            if guessed
            else "this batch"
        )
        raise UnknownSizesError(
            f"the loss and the metrics of {model.name!r} cannot be built with {source}: "
            f"{error}"
        ) from error
    return None


def _symbolic_batch(batch: Any) -> Any:
    for each in keras.tree.flatten(batch):
        if each is not None and not (hasattr(each, "shape") and hasattr(each, "dtype")):
            raise TypeError(
                "batch must be one batch as fit gets it, (x, y), of arrays or "
                f"tf.TensorSpecs; received {each!r} in it"
            )
    return keras.tree.map_structure(_symbolic, batch)


def _symbolic(array: Any) -> Any:
    if array is None:
        return None
    dtype = getattr(array.dtype, "name", array.dtype)
    return keras.KerasTensor(tuple(array.shape), dtype=dtype)


def _guess_batch(model: keras.Model) -> Any:
    if not getattr(model, "inputs", None):
        raise UnknownSizesError("the model does not say its inputs")
    inputs = model.inputs if len(model.inputs) > 1 else model.inputs[0]
    outputs = model.compute_output_spec(inputs)
    flat = keras.tree.flatten(outputs)
    names = getattr(model, "output_names", None) or [""] * len(flat)
    targets = [
        _target(_loss_of(model, i, name), output)
        for i, (name, output) in enumerate(zip(names, flat, strict=True))
    ]
    return inputs, keras.tree.pack_sequence_as(outputs, targets)


def _loss_of(model: keras.Model, index: int, name: str) -> Any:
    losses = model.loss
    if isinstance(losses, Mapping):
        return losses.get(name)
    return losses[index] if isinstance(losses, list | tuple) else losses


def _target(loss: Any, output: Any) -> Any:
    name = loss if isinstance(loss, str) else _name(loss)
    if "sparse" in name.lower():
        return keras.KerasTensor(output.shape[:-1], dtype="int32")
    return keras.KerasTensor(output.shape, dtype=output.dtype)


def _name(thing: Any) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__))


def _check_lookups(lookups: Any) -> None:
    if not isinstance(lookups, Mapping | None):
        raise TypeError(
            "lookups has the rows that a step looks up by a pattern of the variable's "
            f'path, for example {{"*/embeddings": 256}}; received {lookups!r}'
        )
    for pattern, rows in (lookups or {}).items():
        if not isinstance(pattern, str):
            raise TypeError(
                f"a pattern of lookups is a text, as '*/embeddings'; received {pattern!r}"
            )
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
            raise UnknownSizesError(
                "lookups has the number of rows that a step looks up, at least 0; for "
                f"{pattern!r} it received {rows!r}"
            )


def _with_lookups(weights: list[Weight], lookups: Mapping[str, int]) -> list[Weight]:
    found = dict.fromkeys(lookups, False)
    for i, weight in enumerate(weights):
        for pattern, rows in lookups.items():
            if _matches(weight.spec.name, pattern) and weight.spec.shape:
                found[pattern] = True
                weights[i] = dataclasses.replace(weight, lookups=rows)
    absent = [pattern for pattern, is_found in found.items() if not is_found]
    if absent:
        largest = max(weights, key=lambda each: each.memory, default=None)
        raise UnknownSizesError(
            f"lookups has the pattern {absent[0]!r}, which no variable matches; the "
            f"largest variable is {largest.spec.name if largest else 'none'}"
        )
    return weights


def _matches(path: str, pattern: str) -> bool:
    """Returns True if a pattern matches a path or the end of it."""
    return any(fnmatch.fnmatchcase(path, each) for each in (pattern, f"*/{pattern}"))
