"""What cannot be right when workers update without waiting for each other.

Each is refused before the first step, with the reason and what to do instead.
"""

from typing import Any

import keras
import tensorflow as tf


class AsynchronousTrainingError(ValueError):
    """The model asks for something that asynchronous training cannot do right."""


def check_model(model: Any) -> None:
    """Checks a compiled model before its step is traced.

    Raises:
        AsynchronousTrainingError: For gradient accumulation, dynamic loss scaling,
            `run_eagerly` or `jit_compile`.
    """
    if model.run_eagerly:
        raise AsynchronousTrainingError(
            "run_eagerly=True would run every step on the chief, in Python, and none "
            "on a worker. Compile with run_eagerly=False, or debug the model without "
            "the strategy first"
        )
    if model.jit_compile:
        raise AsynchronousTrainingError(
            "jit_compile=True compiles a step for one device, and this one spans a "
            "worker and the ps. Compile the model with jit_compile=False"
        )
    check_optimizer(model.optimizer)


def check_optimizer(optimizer: Any) -> None:
    """Checks that workers can share an optimizer without waiting.

    Raises:
        AsynchronousTrainingError: For gradient accumulation or dynamic loss scaling.
    """
    if optimizer is None:
        return
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise AsynchronousTrainingError(
            "LossScaleOptimizer changes its scale by the last steps' gradients, and "
            "workers that change it at the same time can make it 0. Train in "
            "mixed_bfloat16, which needs no loss scale, in place of mixed_float16"
        )
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    if steps:
        raise AsynchronousTrainingError(
            f"gradient_accumulation_steps={steps}: workers would add to and clear the "
            "same accumulators at the same time, and gradients would be lost or "
            "counted twice. Use a larger batch or a lower learning rate instead"
        )


def check_captures(function: Any, model: Any) -> None:
    """Checks that a traced step uses no variable of the chief.

    Args:
        function: The step, a `ConcreteFunction`.
        model: The Keras model, to name its variables.

    Raises:
        AsynchronousTrainingError: If one was created outside of the scope.
    """
    outside = [
        handle
        for handle, _ in function.graph.captures
        if handle.dtype == tf.resource
        and tf.DeviceSpec.from_string(handle.device).job not in ("ps", "worker")
    ]
    if not outside:
        return
    names = {
        id(variable.value.handle): variable.path
        for variable in (
            *model.variables,
            *model.metrics_variables,
            *getattr(model.optimizer, "variables", ()),
        )
    }
    for variable in function.graph.variables:
        names.setdefault(id(variable.handle), variable.name)
    listed = ", ".join(names.get(id(handle), "an unnamed one") for handle in outside)
    raise AsynchronousTrainingError(
        f"created outside of the strategy's scope: {listed}. Such a variable lives on "
        "the chief, where workers lose each other's updates. Create the model, its "
        "metrics and its optimizer inside `with strategy.scope():`"
    )
