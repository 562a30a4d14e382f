"""What cannot be right when workers update without waiting for each other.

Each is refused before the first step, with the reason and what to do instead.
"""

from typing import Any

import keras

from tfdist import _tf
from tfdist.keras import captures
from tfdist.variables.partitioned import PartitionedVariable

# The norm of a weight, its rows' and columns' means, its orthogonal factor.
_OF_WHOLE_WEIGHTS = frozenset({"Lamb", "Adafactor", "Muon"})


class AsynchronousTrainingError(ValueError):
    """The model asks for something that asynchronous training cannot do right."""


def check_scope(model: keras.Model) -> None:
    """Checks, before an optimizer makes its variables, that it belongs to the cluster.

    Raises:
        AsynchronousTrainingError: If it was made outside of the scope.
    """
    for optimizer in _optimizers_of(model):
        if optimizer._distribution_strategy is not model.distribute_strategy:
            raise AsynchronousTrainingError(
                f"the optimizer {type(optimizer).__name__} was created outside of the "
                "strategy's scope. Create it, and call model.compile(...), inside "
                "`with strategy.scope():`"
            )


def check_model(model: keras.Model) -> None:
    """Checks a compiled model before its step is traced.

    Raises:
        AsynchronousTrainingError: If one of its options, layers or optimizers cannot
            be right on workers that do not wait for each other.
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
    for layer in _tf.flatten_layers(model):
        _check_layer(layer)
    for optimizer in _optimizers_of(model):
        _check_optimizer(optimizer)
    _check_partitioned(model)


def _check_partitioned(model: keras.Model) -> None:
    weights = [
        weight
        for weight in model.trainable_variables
        if isinstance(_tf.value_of(weight), PartitionedVariable)
    ]
    for weight in weights:
        if weight.constraint is not None:
            raise AsynchronousTrainingError(
                f"{weight.path} is split into {len(_tf.value_of(weight).shards)} shards, and "
                "its constraint would read all of them in every step. Leave the "
                "constraint out, or the variable in one piece"
            )
    for optimizer in _optimizers_of(model):
        name = type(optimizer).__name__
        if weights and name in _OF_WHOLE_WEIGHTS:
            raise AsynchronousTrainingError(
                f"{name} computes with a whole weight at a time, and {weights[0].path} "
                f"is split into {len(_tf.value_of(weights[0]).shards)} shards, each updated "
                "on its own ps. Use an optimizer that updates each element by itself, "
                "such as Adam, or leave the variable in one piece"
            )


def _check_layer(layer: keras.Layer) -> None:
    if getattr(layer, "stateful", False):
        raise AsynchronousTrainingError(
            f"layer {layer.name!r} has stateful=True: its state goes from one batch to "
            "the next, and workers that run batches at the same time would overwrite "
            "each other's. Use stateful=False, and longer sequences"
        )
    if isinstance(layer, keras.layers.SpectralNormalization) and layer.trainable:
        raise AsynchronousTrainingError(
            f"layer {layer.name!r}, a SpectralNormalization, rescales its kernel in "
            "each step, and would erase the gradients that other workers have applied "
            "meanwhile. Leave it out, or use a weight constraint such as "
            "keras.constraints.MaxNorm in its place"
        )
    if any(getattr(v, "overwrite_with_gradient", False) for v in layer.variables):
        raise AsynchronousTrainingError(
            f"layer {layer.name!r} computes in float8, whose scales follow the steps "
            "in their order, and workers have no order. Use the dtype policy "
            "mixed_bfloat16"
        )


def _optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The model's compiled optimizer, and those that a custom train_step uses."""
    candidates = [model.optimizer, *vars(model).values()]
    optimizers = {
        id(each): each
        for each in candidates
        if isinstance(each, keras.optimizers.Optimizer)
    }
    for each in list(optimizers.values()):
        for inner in getattr(each, "optimizers", ()):
            optimizers[id(inner)] = inner
    return list(optimizers.values())


def _check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise AsynchronousTrainingError(
            f"{name} changes its scale by the last steps' gradients, and workers that "
            "change it at the same time can make it 0. Train in mixed_bfloat16, which "
            "needs no loss scale, in place of mixed_float16"
        )
    if optimizer.gradient_accumulation_steps:
        raise AsynchronousTrainingError(
            f"{name} has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}: workers would add to and clear "
            "the same accumulators at the same time, and gradients would be lost or "
            "counted twice. Use a larger batch or a lower learning rate instead"
        )
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:
        raise AsynchronousTrainingError(
            f"{name} has ema_overwrite_frequency={optimizer.ema_overwrite_frequency}: "
            "one worker would overwrite the weights while the others update them. Set "
            "it to None; the averages are written to the model at the end of fit"
        )
    if name == "ScheduleFreeAdamW":
        raise AsynchronousTrainingError(
            f"{name} recovers its iterate from two variables that it takes to be of "
            "one moment, and on the ps they are not. Use AdamW"
        )


def check_captures(function: Any, model: Any) -> None:
    """Checks that a traced step uses no variable, table or the like of the chief.

    Args:
        function: The step, a `ConcreteFunction`.
        model: The Keras model, to name its variables.

    Raises:
        AsynchronousTrainingError: If one was created outside of the scope.
    """
    variables, others = captures.of_the_chief(function.graph, model)
    if variables:
        why = (
            "Such a variable lives on the chief, where workers lose each other's "
            "updates. Create the model, its metrics and its optimizer inside"
        )
    elif others:
        why = (
            "The chief alone has it. What every worker has a copy of is a "
            "tf.lookup.StaticHashTable that is created inside"
        )
    else:
        return
    raise AsynchronousTrainingError(
        f"created outside of the strategy's scope: {', '.join(variables + others)}. "
        f"{why} `with strategy.scope():`"
    )
