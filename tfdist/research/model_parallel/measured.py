"""Costs of a Keras model's layers, measured in this process."""

import inspect
import statistics
import time
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.research.model_parallel.graph import LayerGraph
from tfdist.research.model_parallel.keras_graph import LayerCall, graph_of

REPEATS = 5
# Calling a function takes as long as many a layer, so several calls are in one.
_IN_A_ROW = 4


def measure_layers(
    model: keras.Model, *, batch_size: int = 32, repeats: int = REPEATS
) -> LayerGraph:
    """Measures a model's layers: one step, each layer forward and backward by itself.

    Each layer is compiled and called in training mode, on random numbers, once and four
    times in a row; the difference of the medians is three calls within a larger function.
    The backward time is what a call with its gradients takes longer. Layers of the same
    configuration with inputs of the same shapes are measured once. Weights do not change,
    and layers' states are put back.

    Bytes of weights include the slots of the optimizer that the model is compiled with;
    activations are a layer's outputs.

    Cost: `10 (repeats + 1)` calls of each different layer, and compiling it four times.

    Args:
        model: Built from `keras.Input`, or Sequential.
        batch_size: The number of examples of a step.
        repeats: How often each layer is called, at least 1.

    Raises:
        UnknownGraphError: If the graph of the model's layers is not known: the model is a
            subclass with a `call` of its own, or not built.
        ValueError: If a number is below 1.
        TypeError: If it is no Keras model.
    """
    for name, number in (("batch_size", batch_size), ("repeats", repeats)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1; received {number!r}")
    return graph_of(model, _Measuring(repeats), _input_of, batch_size)


def _input_of(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    if "float" in dtype:
        return tf.cast(tf.random.uniform(shape), dtype)
    return tf.fill(shape, "") if dtype == "string" else tf.zeros(shape, dtype)


class _Measuring:
    """Calls layers, and measures their costs."""

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats
        self._known: dict[str, tuple[float, float]] = {}

    def __call__(
        self,
        operation: keras.Operation,
        args: tuple[Nest, ...],
        kwargs: dict[str, Nest],
    ) -> LayerCall:
        kwargs = dict(kwargs)
        if "training" in inspect.signature(operation.call).parameters:
            kwargs["training"] = True
        # Batch normalization, for one, changes its means when it is called in training.
        states = [v for v in getattr(operation, "variables", []) if not v.trainable]
        before = [keras.ops.copy(state.value) for state in states]
        try:
            # A layer may return its input; each output has to be a tensor of its own.
            outputs = keras.tree.map_structure(tf.identity, operation(*args, **kwargs))
            key = _key(operation, args, kwargs)
            if key is None or key not in self._known:
                seconds = self._measure(operation, args, kwargs)
                self._known[key or f"{len(self._known)}"] = seconds
            else:
                seconds = self._known[key]
        finally:
            for state, value in zip(states, before, strict=True):
                state.assign(value)
        return LayerCall(outputs, *seconds)

    def _measure(
        self,
        operation: keras.Operation,
        args: tuple[Nest, ...],
        kwargs: dict[str, Nest],
    ) -> tuple[float, float]:
        flat = keras.tree.flatten((args, kwargs))
        at = [i for i, each in enumerate(flat) if tf.is_tensor(each)]

        def forward(*tensors: tf.Tensor) -> Nest:
            filled = list(flat)
            for place, tensor in zip(at, tensors, strict=True):
                filled[place] = tensor
            now_args, now_kwargs = keras.tree.pack_sequence_as((args, kwargs), filled)
            return operation(*now_args, **now_kwargs)

        def with_gradients(*tensors: tf.Tensor) -> Nest:
            watched = [each for each in tensors if each.dtype.is_floating]
            weights = [v.value for v in getattr(operation, "trainable_weights", [])]
            with tf.GradientTape() as tape:
                tape.watch(watched)
                outputs = [
                    each
                    for each in keras.tree.flatten(forward(*tensors))
                    if each.dtype.is_floating
                ]
            found = tape.gradient(outputs, watched + weights) if outputs else []
            return outputs, [each for each in found if each is not None]

        tensors = [flat[place] for place in at]
        ahead = self._seconds(forward, tensors)
        return ahead, max(self._seconds(with_gradients, tensors) - ahead, 0.0)

    def _seconds(
        self, function: Callable[..., Nest], tensors: list[tf.Tensor]
    ) -> float:
        """Returns the seconds of a function within a larger one."""
        once, often = (_in_a_row(function, times) for times in (1, _IN_A_ROW))
        seconds: tuple[list[float], list[float]] = ([], [])
        for compiled in (once, often):
            compiled(*tensors)  # Traces it.
        for _ in range(self._repeats):
            for compiled, taken in zip((once, often), seconds, strict=True):
                start = time.perf_counter()
                compiled(*tensors)
                taken.append(time.perf_counter() - start)
        first, all_of_them = map(statistics.median, seconds)
        return max(all_of_them - first, 0.0) / (_IN_A_ROW - 1)


def _in_a_row(function: Callable[..., Nest], times: int) -> Callable[..., Nest]:
    """Compiles a function that calls another one several times, one after the other."""

    @tf.function(autograph=False)
    def calls(*tensors: tf.Tensor) -> Nest:
        outputs: list[list[tf.Tensor]] = [[]]
        for _ in range(times):
            with tf.control_dependencies(outputs[-1]):
                # Its own copy, or TensorFlow would compute equal calls once.
                found = function(*map(tf.identity, tensors))
            found = [each for each in keras.tree.flatten(found) if tf.is_tensor(each)]
            # A table's gradient is rows, not the table.
            outputs.append([getattr(each, "values", each) for each in found])
        # All of them: TensorFlow does not compute what is not returned.
        return outputs

    return calls


def _key(
    operation: keras.Operation, args: tuple[Nest, ...], kwargs: dict[str, Nest]
) -> str | None:
    """Returns the same text for calls that cost the same; None if that is not known."""
    try:
        config = operation.get_config()
    except NotImplementedError:
        return None
    # Neither makes a layer slower.
    config = {k: v for k, v in config.items() if k not in ("name", "seed")}
    described = keras.tree.map_structure(
        lambda each: (
            (tuple(each.shape), each.dtype.name) if tf.is_tensor(each) else repr(each)
        ),
        (args, kwargs),
    )
    return f"{type(operation)} {config} {described}"
