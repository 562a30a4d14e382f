"""Runs a program, under whatever strategy is given, and says what came out of it."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses

from .layers import APPLY, inputs_of
from .optimizers import optimizer_of
from .programs import Program
from .rows import CLASSES, arrays_of, fit_arguments
from .steps import CLASSES as MODELS


def build(program: Program) -> keras.Model:
    """Returns the compiled model of a program."""
    inputs, x = inputs_of(program.inputs)
    for name in program.layers:
        x = APPLY[name](x)
    if len(x.shape) == 3:
        x = layers.GlobalAveragePooling1D()(x)
    elif len(x.shape) == 4:
        x = layers.Flatten()(x)
    model = MODELS[program.step](inputs, _outputs(program.head, x))
    compiled = {} if program.step == "without_call" else _LOSSES[program.head]()
    model.compile(
        optimizer_of(program.optimizer),
        steps_per_execution=program.execution,
        **compiled,
    )
    if hasattr(model, "prepare"):
        model.prepare()
    return model


def run(program: Program, strategy: tf.distribute.Strategy) -> dict[str, np.ndarray]:
    """Trains a program twice, and returns each array that it leaves, by name."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(program.seed)
    with strategy.scope():
        model = build(program)
    x, *rest = arrays_of(program)
    options: dict[str, Any] = {"epochs": program.epochs, "verbose": 0}
    if program.validated:
        options |= {"validation_data": (x, *rest), "validation_batch_size": 16}
    data, found = fit_arguments(program), {}
    for call in ("first", "second"):
        history = model.fit(**data, **options).history
        if (
            program.data == "generator"
        ):  # It is ahead of the steps, nobody knows how far.
            data = fit_arguments(program)
        found |= {f"{call} fit, {name}": np.asarray(h) for name, h in history.items()}
    found |= observed(model)
    if program.predicted:
        outputs = model.predict(x, batch_size=16, verbose=0)
        for i, each in enumerate(keras.tree.flatten(outputs)):
            found[f"output {i}"] = each
    return found


def observed(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns the variables of a model, its metrics and its optimizers.

    Of numbers from `tf.random`, whose seed tfdist does not keep, how many differ.
    """
    variables = {variable.path: variable for variable in model.variables} | {
        v.name: v for v in vars(model).values() if isinstance(v, tf.Variable)
    }
    for name in ("optimizer", "second"):
        optimizer = getattr(model, name, None)
        # Of their paths, Keras leaves out the first part under a strategy, or not.
        for i, variable in enumerate(getattr(optimizer, "variables", ())):
            variables[f"{name}, {i}: {variable.path.rpartition('/')[2]}"] = variable
    found = {name: np.asarray(each.numpy()) for name, each in variables.items()}
    return {
        name: np.asarray(len(np.unique(each))) if name.endswith("/drawn") else each
        for name, each in found.items()
    }


def _outputs(head: str, x: Any) -> Any:
    if head == "two_outputs":
        return {
            "score": layers.Dense(1, name="score")(x),
            "kind": layers.Dense(CLASSES, name="kind")(x),
        }
    return layers.Dense(CLASSES if head == "classes" else 1)(x)


def _of_classes() -> Any:
    return losses.SparseCategoricalCrossentropy(from_logits=True)


_LOSSES = {
    "regression": lambda: {
        "loss": "mse",
        "metrics": ["mae", keras.metrics.RootMeanSquaredError()],
    },
    "classes": lambda: {"loss": _of_classes(), "metrics": ["accuracy"]},
    "binary": lambda: {
        "loss": losses.BinaryCrossentropy(from_logits=True),
        "metrics": [
            keras.metrics.Precision(thresholds=0.0),
            keras.metrics.Recall(thresholds=0.0),
        ],
    },
    "two_outputs": lambda: {
        "loss": {"score": losses.Huber(), "kind": _of_classes()},
        "metrics": {"score": ["mae"], "kind": ["accuracy"]},
    },
}
