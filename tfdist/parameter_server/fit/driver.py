"""Training by `fit` on parameter servers."""

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from tfdist._support.context import setting
from tfdist._support.types import Logs, Nest
from tfdist.checkpoint.kept_fit import told_if_not_kept
from tfdist.cluster.liveness.peers import error_of_lost_ps
from tfdist.cluster.settings import Checkpoints
from tfdist.consistency.combinations import go_together
from tfdist.consistency.synchronous import Synchronous
from tfdist.data.pipeline_report import PipelineReport
from tfdist.keras import building
from tfdist.keras.default_driver import DefaultDriver
from tfdist.keras.functions import PredictFunction, StepFunction
from tfdist.keras.strides import (
    callbacks_of,
    in_strides,
    sees_batches,
    shows_progress,
    telling_the_ends,
)
from tfdist.parameter_server.checkpoints.resumable_fit import (
    ResumableFit,
    resumable_fit,
)
from tfdist.parameter_server.exchange.policies import ExchangeEvery
from tfdist.parameter_server.feed.feed import FedDataset
from tfdist.parameter_server.feed.leased_batches import LeaseReaders
from tfdist.parameter_server.feed.measured_pipeline import measured_pipeline
from tfdist.parameter_server.feed.shared_files import SharedFiles
from tfdist.parameter_server.fit.export import with_whole_variables
from tfdist.parameter_server.fit.pace import Pace, StepTime
from tfdist.parameter_server.fit.staleness_logs import measure_staleness
from tfdist.parameter_server.steps import refusals
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.predictions import WorkerPredictions
from tfdist.parameter_server.steps.train_steps import TrainSteps
from tfdist.parameter_server.steps.worker_function import WorkerFunction
from tfdist.parameter_server.steps.worker_steps import WorkerSteps
from tfdist.placement.link_use import STEPS, LinkUse, Traffic
from tfdist.variables.reserved_rows import refuse_tables_that_grow, warn_of_full_tables

_log = logging.getLogger("tfdist")

# The pace at which the current call of `fit` or `evaluate` sends steps, and whether it
# shows its progress; None for one step at a time.
_pace: ContextVar[tuple[Pace, bool] | None] = ContextVar("pace", default=None)


class ParameterServerDriver(DefaultDriver):
    """Sends each step to a free worker, and waits only where Keras needs the results.

    Attributes:
        fits: How many calls of `fit` have written checkpoints. Each has a directory,
            named after its number.
        is_within_epoch: Whether `fit` is between the first and the last step of an epoch.
        newest_staleness: The mean staleness of the steps of the last epoch, if measured.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        in_flight: InFlight,
        checkpoints: Checkpoints,
    ) -> None:
        super().__init__(strategy)
        self._in_flight = in_flight
        self._checkpoints = checkpoints
        self._resumable: ResumableFit | None = None
        self._paces: WeakKeyDictionary[keras.Model, dict[str, Pace]] = (
            WeakKeyDictionary()
        )
        self._told_of_small_calls = False
        self._lease_readers = LeaseReaders(SharedFiles(strategy))
        self._step_time = StepTime(lambda: in_flight.steps_finished)
        self._method = ""
        self._traced: Callable[[], WorkerFunction | None] = lambda: None
        self.fits = 0
        self.is_within_epoch = False
        self.newest_staleness: float | None = None

    def progress(self) -> dict[str, float]:
        """Returns the facts about workers that the launcher shows while `fit` runs."""
        numbers: dict[str, float] = {**self.strategy.activity.finished}
        if self.newest_staleness is not None:
            numbers["staleness"] = self.newest_staleness
        return numbers

    def train_function(self, model: keras.Model) -> Callable[[Iterator[Nest]], Logs]:
        """Checks the model, and returns the function that sends train steps to workers.

        Raises:
            AsynchronousTrainingError: If asynchronous workers cannot train the model.
            PlanMismatchError: If it does not match the placement plan.
        """
        weights = [each.value for each in model.weights]
        self.strategy.extended.placed.check_complete(weights)
        step = building.step_of(model, building.TRAIN)

        def counted_step(batch: Nest) -> Nest:
            self.strategy.step_counter.count()
            return step(batch)

        return StepFunction(model, TrainSteps(model, self._in_flight, counted_step))

    def test_function(self, model: keras.Model) -> Callable[[Iterator[Nest]], Logs]:
        """Returns the function that sends test steps to workers."""
        refusals.check_model(model, isinstance(self.strategy.consistency, Synchronous))
        step = building.step_of(model, building.TEST)
        return StepFunction(model, WorkerSteps(model, self._in_flight, step))

    def predict_function(self, model: keras.Model) -> Callable[[list[Nest]], Nest]:
        """Returns the function that predicts on workers."""
        return PredictFunction(WorkerPredictions(model, self._in_flight))

    def check_is_between_epochs(self) -> None:
        """Raises a RuntimeError within an epoch, while its steps are in flight."""
        if self.is_within_epoch:
            raise RuntimeError(
                "consistency was set within an epoch, where steps are under way. Set it "
                "before fit, in on_epoch_begin or on_epoch_end, or with the callback "
                "tfdist.ConsistencySchedule({0: tfdist.Synchronous(), ...})"
            )

    def data(self, adapter: Any) -> FedDataset:
        """Returns the dataset; the workers can read it themselves if it is endless."""
        return FedDataset(
            adapter.get_tf_dataset(),
            self.strategy.coordinator,
            self.strategy.num_replicas,
            self._lease_readers,
        )

    def build(self, model: keras.Model, element_spec: Nest) -> None:
        """Builds the model and its optimizer on the ps."""
        refusals.check_scope(model)
        super().build(model, element_spec)

    @contextlib.contextmanager
    def running(
        self, model: keras.Model, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Continues `fit` from its checkpoint; waits for pending steps on errors."""
        if method == "fit":
            measure_staleness(self.strategy, arguments)
        # A callback of `fit` may call `evaluate`, in the middle of an epoch.
        outer, self._method = self._method, method
        was_within_epoch = self.is_within_epoch
        try:
            # A call within a callback of another one, whose steps are in flight.
            self._in_flight.collect()
            with (
                self.strategy.activity.call(),
                self._resuming(model, method, arguments),
                self._at_pace(model, method, arguments),
            ):
                yield
            if method == "fit":
                warn_of_full_tables(model)
        except BaseException as error:
            # The user's `except` block may save or read variables, which steps still in
            # flight would change meanwhile.
            self._in_flight.drain()
            # A gate is on a ps, and can only be asked if none is lost.
            if lost := error_of_lost_ps(error, self.strategy.servers):
                raise lost.with_traceback(error.__traceback__) from None
            raised = self.strategy.gates.error
            if not self._in_flight.stalls:
                self.strategy.gates.reset()
            if raised is not None:
                raise raised from None
            raise
        finally:
            self._method = outer
            # The generator of its steps may live on, in the error's traceback.
            self.is_within_epoch = was_within_epoch

    @contextlib.contextmanager
    def _at_pace(
        self, model: keras.Model, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Takes steps together during a call, unless a callback sees each batch."""
        given = callbacks_of(arguments)
        # `predict` asks for several batches ahead by itself.
        stage = building.STAGES[method] if method != "predict" else None
        pace = None
        if stage is not None and sees_batches(given, stage):
            self._tell_of_small_calls(model)
        elif stage is not None:
            paces = self._paces.setdefault(model, {})
            exchange = self.strategy.exchange.steps
            pace = (
                paces.setdefault(stage, Pace(self.strategy.num_replicas, exchange)),
                shows_progress(given, arguments.get("verbose", "auto")),
            )
        with setting(_pace, pace):
            yield

    def _tell_of_small_calls(self, model: keras.Model) -> None:
        """Warns once if callbacks take away what `exchange` is to save."""
        asked, each = self.strategy.exchange.steps, model.steps_per_execution
        if each < asked and not self._told_of_small_calls:
            self._told_of_small_calls = True
            _log.warning(
                "exchange=ExchangeEvery(%d): a callback sees each batch, so values move once in "
                "steps_per_execution=%d steps. Pass steps_per_execution=%d to compile, "
                "or leave out callbacks with a batch hook such as on_train_batch_end",
                asked,
                each,
                asked,
            )

    @contextlib.contextmanager
    def _resuming(
        self, model: keras.Model, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        # A callback may itself call `fit`. That inner call writes no checkpoints.
        is_inner = self._resumable is not None
        if method != "fit" or self._checkpoints.directory is None or is_inner:
            with told_if_not_kept(self._checkpoints.directory):
                yield
            return
        number, self.fits = self.fits, self.fits + 1
        with resumable_fit(
            model, arguments, number, self._checkpoints, self._in_flight
        ) as self._resumable:
            try:
                yield
            finally:
                self._resumable = None

    def steps(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Skips the steps that ran before the checkpoint, and takes others together."""
        if self._resumable is not None:
            steps = self._resumable.follow(epoch_iterator, steps)
        if (current := _pace.get()) is not None:
            pace, is_shown = current
            pace.start(self._in_flight.steps_finished)
            steps = in_strides(
                epoch_iterator,
                steps,
                lambda: pace.steps(self._in_flight.steps_finished),
                pace.chosen,
                is_shown,
            )
        else:
            steps = telling_the_ends(epoch_iterator, steps)
        if self._method == "fit":
            steps = self._step_time.during(steps)
        return self._within_epoch(steps)

    def _within_epoch(self, steps: Iterator[Any]) -> Iterator[Any]:
        self.is_within_epoch = True
        yield from steps
        self.is_within_epoch = False

    def note_step(self, traced: WorkerFunction) -> None:
        """Notes the last step that was traced to train a model."""
        # Weakly: the strategy must not keep the step of a model that is gone.
        self._traced = weakref.ref(traced)

    def traffic(self) -> Traffic | None:
        """Returns the traffic of a train step; None if unknown or if values stay."""
        traced = self._traced()
        if traced is None or not traced.writes_each_step:
            return None
        return traced.step.traffic

    def link_use(self) -> LinkUse | None:
        """Returns how long a worker waited for its link; None before an epoch of `fit`."""
        seconds, traffic = self._step_time.seconds, self.traffic()
        if seconds is None or traffic is None:
            return None
        policy, wire_dtype = self.strategy.consistency, self.strategy.wire_dtype
        return LinkUse(
            traffic,
            # All replicas together finish a step every `seconds`.
            seconds * self.strategy.num_replicas,
            may_narrow=not wire_dtype
            and go_together(policy, ExchangeEvery(), "bfloat16"),
            may_merge=go_together(policy, ExchangeEvery(STEPS), wire_dtype),
        )

    def pipeline_report(
        self, dataset: tf.data.Dataset, batches: int, step_seconds: float | None
    ) -> PipelineReport:
        """Measures the cost of a pipeline on the workers; see the strategy."""
        seconds = self._step_time.seconds
        if step_seconds is None and seconds is not None:
            step_seconds = seconds * self.strategy.num_replicas
        self._in_flight.join()
        with self.strategy.activity.call():
            return measured_pipeline(
                self.strategy, self._lease_readers, dataset, batches, step_seconds
            )

    def storing(
        self, model: keras.Model, operation: str
    ) -> contextlib.AbstractContextManager[Any]:
        """Makes a save contain all steps so far, and no part of a later step."""
        if operation == "hdf5":
            # Before Keras has opened the file.
            refuse_tables_that_grow(model)
        if operation == "export":
            self._in_flight.join()
            return with_whole_variables(model)
        if operation != "load":
            self._in_flight.join_own()
        return contextlib.nullcontext(True)

    def join(self) -> None:
        """Waits for all steps in flight, and ends the round of the last ones."""
        self._in_flight.join()
        self._in_flight.rounds.finish()
