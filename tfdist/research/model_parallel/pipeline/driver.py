"""Training by `fit` under a `PipelineStrategy`."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import DataAdapter, EpochIterator, Logs, Nest, Stride
from tfdist.checkpoint.fit_state import with_history
from tfdist.checkpoint.keeper import Keeper
from tfdist.keras.default_driver import DefaultDriver
from tfdist.keras.strides import telling_the_ends
from tfdist.research.model_parallel.pipeline import refusals
from tfdist.research.model_parallel.pipeline.extended import move
from tfdist.research.model_parallel.pipeline.kept_data import KeptData, OneProcess
from tfdist.research.model_parallel.pipeline.microbatches import Form, tensors_of
from tfdist.research.model_parallel.pipeline.pipeline import Pipeline
from tfdist.research.model_parallel.pipeline.stale_steps import Flow
from tfdist.research.model_parallel.pipeline.step_time import Execution
from tfdist.research.model_parallel.pipeline.steps import Steps
from tfdist.research.model_parallel.schedule import make_schedule

_as_written = tf.autograph.experimental.do_not_convert


class PipelineDriver(DefaultDriver):
    """Traces each step of a model as one graph over the devices of its stages."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__(strategy)
        self._pipelines: weakref.WeakKeyDictionary[Any, Pipeline] = (
            weakref.WeakKeyDictionary()
        )
        self._flows: weakref.WeakSet[Flow] = weakref.WeakSet()
        self._is_fitting = False
        self._keeper = Keeper(strategy.checkpoints, OneProcess, self.join)

    def train_function(self, model: keras.Model) -> Callable[[Iterator[Nest]], Logs]:
        """Returns the function that trains on the next batches of an iterator."""
        run = super().train_function(model)

        def to_the_end(batches: Iterator[Nest]) -> Logs:
            # Otherwise callbacks would see the last logs of the epoch before.
            if getattr(batches, "is_first", False):
                for flow in self._flows:
                    flow.begin_epoch()
            try:
                logs = run(batches)
            except StopIteration:
                # Keras leaves the epoch here without the wait that it makes elsewhere.
                self.join()
                raise
            # Callbacks see the logs of the last batch of an epoch, too.
            if getattr(batches, "is_last", False):
                for flow in self._flows:
                    logs = flow.drain() or logs
            return logs

        return to_the_end

    def train_step_function(self, model: keras.Model) -> Callable[[Nest], Nest]:
        """Returns the function that trains on a batch."""
        refusals.check(model, "train_step")
        if not self.strategy.max_staleness:
            return self._traced(self._steps(model).train)
        refusals.check_stale(model)
        flow = self._new_flow(model)
        self._flows.add(flow)

        def step(batch: Nest) -> Nest:
            logs = flow.feed(batch)
            # Callbacks need logs after the first step, and only the last stage has any.
            return logs if self._is_fitting and logs else flow.drain()

        return step

    def test_step_function(self, model: keras.Model) -> Callable[[Nest], Nest]:
        """Returns the function that evaluates a batch."""
        refusals.check(model, "test_step")
        return self._traced(self._steps(model).test)

    def predict_function(self, model: keras.Model) -> Callable[[list[Nest]], Nest]:
        """Returns the function that predicts for some batches."""
        refusals.check(model, "predict_step")
        step: Any = None

        def predict(batches: list[Nest]) -> Nest:
            nonlocal step
            if step is None:
                self._build_to_predict(model, batches[0])
                step = self._traced(self._steps(model).predict)
            outputs = [step(each) for each in batches]
            if len(outputs) == 1:
                return outputs[0]
            return keras.tree.map_structure(lambda *e: tf.concat(e, 0), *outputs)

        return predict

    def build(self, model: keras.Model, element_spec: Nest) -> None:
        """Builds the model, cuts it into stages, and moves its variables there."""
        refusals.check(model)
        # First where possible: an optimizer creates its slots where the weights are by
        # then.
        if _tf.functional_of(model) is not None and model.built:
            self.pipeline(model)
        super().build(model, element_spec)
        self.pipeline(model)

    def pipeline(self, model: keras.Model) -> Pipeline:
        """Returns a model in stages, its variables on their devices."""
        functional = _tf.functional_of(model)
        if functional is None:
            raise refusals.unknown_graph(model)
        found = self._pipelines.get(model)
        if found is None or found.functional is not functional:
            strategy = self.strategy
            found = Pipeline(
                functional,
                strategy.given_stages,
                strategy.devices,
                strategy.replica_devices,
                self._execution(),
            )
            self._pipelines[model] = found
        optimizer = getattr(model, "optimizer", None)
        variables = getattr(optimizer, "variables", ())
        if move(self.strategy.extended, found.placed, variables) and optimizer:
            # An optimizer finds weights by their identity, and these are new.
            for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
                if each is not None and each.built:
                    _tf.renew_index(each)
        return found

    @contextlib.contextmanager
    def running(
        self, model: keras.Model, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Refuses models before their first step; an error drops batches in flight."""
        refusals.check(model)
        # Keras and callbacks wait for the results of a step when they read them.
        with self._needing_workers():
            if method != "fit":
                yield
                return
            self._is_fitting = True
            try:
                with self._keeping(model, arguments):
                    yield
            except BaseException:
                for flow in self._flows:
                    flow.forget()
                raise
            finally:
                self._is_fitting = False

    @contextlib.contextmanager
    def _keeping(self, model: keras.Model, arguments: dict[str, Any]) -> Iterator[None]:
        given = arguments.get("callbacks")
        every, epochs = with_history(given), arguments.get("epochs", 1)
        with self._keeper.keeping(model, every, epochs) as kept:
            if kept is not None and isinstance(given, keras.callbacks.CallbackList):
                given.append(kept)
            elif kept is not None:
                arguments["callbacks"] = [*every, kept]
            yield

    def data(self, adapter: DataAdapter) -> Any:
        """Returns the dataset, from where a checkpoint left off."""
        dataset, keeper = super().data(adapter), self._keeper
        if not keeper.is_keeping:
            return dataset
        return KeptData(dataset, keeper.start_of_data())

    def steps(
        self, epoch_iterator: EpochIterator, steps: Iterator[Stride]
    ) -> Iterator[Any]:
        """Passes on the steps after those before a checkpoint."""
        steps = self._keeper.follow(epoch_iterator, steps)
        return telling_the_ends(epoch_iterator, steps)

    def join(self) -> None:
        """Passes all batches that are in flight through all stages."""
        for flow in self._flows:
            flow.drain()

    def _execution(self) -> Execution:
        strategy = self.strategy
        count, microbatches = len(strategy.devices), strategy.microbatches
        return Execution(
            make_schedule(strategy.schedule, count, microbatches),
            strategy.recompute,
            waits=not strategy.max_staleness,
        )

    def _steps(self, model: keras.Model) -> Steps:
        return Steps(model, self.pipeline(model), self.strategy)

    def _new_flow(self, model: keras.Model) -> Flow:
        pipeline = self.pipeline(model)
        return Flow(model, pipeline, self.strategy, self._function, self._run)

    def _build_to_predict(self, model: keras.Model, batch: Nest) -> None:
        if isinstance(model, keras.Sequential) and not model.built:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            with self.strategy.scope():
                model.build(x.shape)

    def _traced(self, step: Callable[[Nest, int], Nest]) -> Callable[[Nest], Nest]:
        # A trace for each number of rows, from which that of microbatches follows.
        traced: dict[str, Callable[..., Any]] = {}

        def call(batch: Nest) -> Nest:
            tensors = tensors_of(batch)
            form = Form(batch, tensors)
            if form.key not in traced:
                traced[form.key] = self._function(
                    lambda *present: step(form.batch(present), form.rows), form.specs
                )
            return self._run(traced[form.key], tensors)

        return call

    def _function(self, step: Callable[..., Any], specs: list[tf.TensorSpec]) -> Any:
        """Returns a step as a graph, in the context of a replica."""

        @_as_written
        def in_replica(*tensors: tf.Tensor) -> Nest:
            return self.strategy.run(step, args=tensors)

        return _tf.function(in_replica, specs)

    def _run(self, function: Any, tensors: list[tf.Tensor]) -> Any:
        with self._needing_workers():
            return function(*tensors)

    def _needing_workers(self) -> contextlib.AbstractContextManager[None]:
        workers = self.strategy.workers
        return workers.call() if workers else contextlib.nullcontext()
