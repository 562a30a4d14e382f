"""How `fit` trains under a `PipelineStrategy`."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist.keras.default_driver import DefaultDriver
from tfdist.pipeline import refusals
from tfdist.pipeline.microbatches import rows_of
from tfdist.pipeline.moves import move
from tfdist.pipeline.pipeline import Pipeline
from tfdist.pipeline.steps import Steps

_as_written = tf.autograph.experimental.do_not_convert


class PipelineDriver(DefaultDriver):
    """Traces each step of a model as one graph over the devices of its stages.

    Args:
        strategy: The `PipelineStrategy`.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy)
        self._pipelines: weakref.WeakKeyDictionary[Any, Pipeline] = (
            weakref.WeakKeyDictionary()
        )

    def train_step_function(self, model: Any) -> Callable[[Any], Any]:
        """Returns the function that trains on a batch."""
        refusals.check(model, "train_step")
        return self._traced(self._steps(model).train)

    def test_step_function(self, model: Any) -> Callable[[Any], Any]:
        """Returns the function that evaluates a batch."""
        refusals.check(model, "test_step")
        return self._traced(self._steps(model).test)

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """Returns the function that predicts for some batches."""
        refusals.check(model, "predict_step")
        step: Any = None

        def predict(batches: list[Any]) -> Any:
            nonlocal step
            if step is None:
                self._build_to_predict(model, batches[0])
                step = self._traced(self._steps(model).predict)
            outputs = [step(each) for each in batches]
            if len(outputs) == 1:
                return outputs[0]
            return keras.tree.map_structure(lambda *e: tf.concat(e, 0), *outputs)

        return predict

    def build(self, model: Any, element_spec: Any) -> None:
        """Builds the model, cuts it into stages, and moves its variables there."""
        refusals.check(model)
        if _tf.functional_of(model) is not None and model.built:
            self.pipeline(model)
        super().build(model, element_spec)
        self.pipeline(model)

    def pipeline(self, model: Any) -> Pipeline:
        """Returns a model in stages, its variables on their devices."""
        functional = _tf.functional_of(model)
        if functional is None:
            raise refusals.unknown_graph(model)
        found = self._pipelines.get(model)
        if found is None or found.functional is not functional:
            strategy = self.strategy
            found = Pipeline(functional, strategy.given_stages, strategy.devices)
            self._pipelines[model] = found
        optimizer = getattr(model, "optimizer", None)
        variables = getattr(optimizer, "variables", ())
        if move(self.strategy.extended, found.placed, variables) and optimizer:
            for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
                if each is not None and each.built:
                    _tf.renew_index(each)
        return found

    def running(
        self, model: Any, method: str, arguments: dict[str, Any]
    ) -> contextlib.AbstractContextManager[Any]:
        """Refuses models before their first step."""
        refusals.check(model)
        return contextlib.nullcontext()

    def _steps(self, model: Any) -> Steps:
        strategy = self.strategy
        return Steps(
            model,
            self.pipeline(model),
            strategy.microbatches,
            strategy.schedule,
            strategy.recompute,
        )

    def _build_to_predict(self, model: Any, batch: Any) -> None:
        if isinstance(model, keras.Sequential) and not model.built:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            with self.strategy.scope():
                model.build(x.shape)

    def _traced(self, step: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
        # A trace for each number of rows, from which that of microbatches follows.
        traced: dict[str, Callable[..., Any]] = {}

        def call(batch: Any) -> Any:
            leaves = keras.tree.flatten(batch)
            present = [_as_tensor(each) for each in leaves if _is_present(each)]
            rows = rows_of(present)
            specs = [_of_any_rows(each) for each in present]
            key = repr((rows, specs, [_is_present(each) for each in leaves]))
            if key not in traced:

                @_as_written
                def on_present(*present: Any) -> Any:
                    rest = iter(present)
                    values = [
                        next(rest) if _is_present(each) else None for each in leaves
                    ]
                    whole = keras.tree.pack_sequence_as(batch, values)
                    return self.strategy.run(step, args=(whole, rows))

                traced[key] = _tf.function(on_present, specs)
            workers = self.strategy.workers
            with workers.call() if workers else contextlib.nullcontext():
                return traced[key](*present)

        return call


def _is_present(value: Any) -> bool:
    return value is not None and not isinstance(value, tf.experimental.Optional)


def _of_any_rows(value: Any) -> Any:
    # As in one process, where Keras does not know the size of a batch: what it reports of
    # several losses depends on that.
    return tf.TensorSpec([None, *value.shape[1:]], value.dtype)


def _as_tensor(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        return value
    return tf.convert_to_tensor(value)
