"""The driver of `SynchronousStrategy`: how `fit` trains in lockstep."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist._support.context import setting
from tfdist._support.types import DataAdapter, EpochIterator, Logs, Nest, Stride
from tfdist.checkpoint.fit_state import with_history
from tfdist.checkpoint.keeper import Keeper
from tfdist.cluster.liveness.peers import naming_lost_peers
from tfdist.keras import building
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.default_driver import DefaultDriver
from tfdist.keras.functions import PredictFunction, StepFunction
from tfdist.keras.scope import outside_of_scope
from tfdist.keras.strides import callbacks_of, in_strides, sees_batches
from tfdist.peers import agreement, callbacks, calls, checksums, waits
from tfdist.peers.input import ShardedData, check_read_once
from tfdist.synchronous.fit import fixed_rows, refusals
from tfdist.synchronous.fit.model_functions import runs_eagerly
from tfdist.synchronous.fit.steps import ReplicaPredictions, ReplicaSteps
from tfdist.synchronous.fit.stride import CommonStride

_log = logging.getLogger("tfdist")

# Of the current call of `fit` or `evaluate`; None for one step at a time.
_stride: ContextVar[CommonStride | None] = ContextVar("stride", default=None)


class _ScriptPeers:
    """The processes that run the script of a `SynchronousStrategy`, as `Peers`."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        extended = strategy.extended
        self.num_workers: int = strategy.num_workers
        self.num_replicas: int = strategy.num_replicas
        self.worker_index: int = extended.worker_index
        self.is_chief: bool = strategy.is_chief
        self.gather_numbers = extended.gather_numbers
        self.gather_texts = extended.gather_texts
        self.copy_from_chief = strategy.copy_from_chief
        self.distribute_shares = strategy.distribute_shares


class _Epochs:
    """Checks of a `fit` that all workers update the model alike, and stop together.

    A callback may set what no step exchanges, such as the learning rate, on some workers.

    Cost: two messages of 16 bytes per worker in each epoch.
    """

    def __init__(self, driver: "SynchronousDriver", model: keras.Model) -> None:
        self._driver, self._model = driver, model
        self._last: dict[str, str] = {}
        self._stopped_alone = False

    def around(
        self, given: list[keras.callbacks.Callback]
    ) -> list[keras.callbacks.Callback]:
        """Returns the callbacks of `fit`, with those that check."""
        first = keras.callbacks.LambdaCallback(on_epoch_end=self._end_updates)
        last = keras.callbacks.LambdaCallback(
            on_epoch_begin=self._begin_epoch, on_epoch_end=self._end_epoch
        )
        return [first, *given, last]

    def _begin_epoch(self, epoch: int, logs: Logs | None = None) -> None:
        self._check(calls.EPOCH, checksums.of_updates(self._model))

    def _end_updates(self, epoch: int, logs: Logs | None = None) -> None:
        # What callbacks set from now on decides no update of this epoch, and the next
        # `fit` begins as the chief.
        self._last = checksums.of_updates(self._model)

    def _end_epoch(self, epoch: int, logs: Logs | None = None) -> None:
        stops = self._driver.agree(calls.END_OF_EPOCH, int(self._model.stop_training))
        if any(stops) and not all(stops):
            self._stopped_alone = self._model.stop_training = True
            names = self._driver.strategy.extended.worker_names
            on = [name for name, stop in zip(names, stops, strict=True) if stop]
            _log.warning(
                "model.stop_training is set on %s alone: all workers stop after epoch %d, "
                "and end with the weights of %s. To decide on every worker, give each the "
                "callback: all of them see the same logs",
                ", ".join(on),
                epoch + 1,
                names[0],
            )

    def end_fit(self) -> None:
        """Checks the last epoch, when every worker has come here."""
        self._check(calls.END_OF_FIT, self._last)
        if self._stopped_alone:
            # The callback may have restored other weights.
            callbacks.copy_from_chief(self._model, self._driver.peers)

    def _check(self, call: str, mine: dict[str, str]) -> None:
        agree = functools.partial(self._driver.agree, call)
        agreement.check_updates(mine, self._driver.peers, agree)


class SynchronousDriver(DefaultDriver):
    """Runs every step on all replicas together, each on its rows of the batch."""

    in_unison = True

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__(strategy)
        self._keeper = Keeper(
            strategy.checkpoints, lambda: strategy.extended, self.join
        )

    @functools.cached_property
    def peers(self) -> _ScriptPeers:
        """The processes that run the script."""
        return _ScriptPeers(self.strategy)

    def train_function(self, model: keras.Model) -> Callable[[Iterator[Nest]], Logs]:
        """Checks the model and returns the function that trains it on all replicas.

        Raises:
            SynchronousTrainingError: If a layer needs more than a part of a batch.
        """
        refusals.check_model(model)
        step = building.step_of(model, building.TRAIN)
        return StepFunction(model, ReplicaSteps(model, step))

    def test_function(self, model: keras.Model) -> Callable[[Iterator[Nest]], Logs]:
        """Returns the function that runs test steps on all replicas."""
        step = building.step_of(model, building.TEST)
        return StepFunction(model, ReplicaSteps(model, step))

    def predict_function(self, model: keras.Model) -> Callable[[list[Nest]], Nest]:
        """Returns the function that predicts on all replicas."""
        return PredictFunction(ReplicaPredictions(model))

    def data(self, adapter: DataAdapter) -> ShardedData:
        """Returns this worker's share of the data."""
        return ShardedData(adapter, self.peers, self._keeper.start_of_data())

    def build(self, model: keras.Model, element_spec: Nest) -> None:
        """Builds the model and its optimizer with a copy on every replica."""
        refusals.check_optimizer(model)
        if self.strategy.has_one_script:
            refusals.check_weights(model)
        # `train_on_batch` gives a batch, whose number of rows is not that of a replica.
        leaves = tf.nest.flatten(element_spec)
        is_batch = not any(isinstance(each, tf.TypeSpec) for each in leaves)
        structure_of = BatchStructure.of_batch if is_batch else BatchStructure
        structure = structure_of(element_spec)
        stage = building.stage()
        functions: ReplicaSteps | ReplicaPredictions = ReplicaPredictions(model)
        if stage != building.PREDICT:
            functions = ReplicaSteps(model, building.step_of(model, stage))
        with fixed_rows.explained(is_batch or structure.has_fixed_rows):
            building.build(
                model,
                self.strategy,
                structure.specs,
                lambda batch: functions.rehearse(structure, batch),
                # In eager mode there is no graph, so kinds come from a rehearsal.
                always=runs_eagerly(model),
                any_rows=True,
            )

    @contextlib.contextmanager
    def running(
        self, model: keras.Model, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Starts `fit` from the same state on all workers, and names a lost worker."""
        extended = self.strategy.extended
        # `fit` validates on the same generator after each epoch, and reads on.
        if self._needs_to_agree and not arguments.get("_use_cached_eval_dataset"):
            check_read_once(arguments)
        with (
            calls.naming_lone_calls(),
            naming_lost_peers(extended.lost_peers),
            extended.call(),
        ):
            given = callbacks_of(arguments)
            stage = building.STAGES[method] if method != "predict" else None
            one_by_one = (
                stage is None or runs_eagerly(model) or sees_batches(given, stage)
            )
            one_by_one = any(self.agree(method, int(one_by_one)))
            with contextlib.ExitStack() as stack:
                if method == "fit":
                    agreement.check_arguments(arguments, self.peers)
                    stack.enter_context(self._keeping(model, arguments))
                    epochs = self._with_checks(model, arguments)
                stack.enter_context(self._together(one_by_one))
                yield
            if method == "fit":
                # After `fit`, every worker may load what the chief's callbacks wrote.
                epochs.end_fit()

    @property
    def _needs_to_agree(self) -> bool:
        return self.strategy.num_workers > 1 and not self.strategy.has_one_script

    def agree(self, call: str, number: int = 0) -> list[int]:
        """Checks that all workers begin the same call. Returns the number of each.

        Args:
            call: One of `calls.CALLS`.
            number: This worker's.

        Raises:
            LoneCallError: If another worker begins another call.
        """
        if not self._needs_to_agree:
            return [number]
        self.calls += 1
        extended = self.strategy.extended
        names, gather = extended.worker_names, extended.gather_numbers
        with (points := self.strategy.waits).at(call):
            numbers = [number, points.count]
            table = calls.agree(call, numbers, names, gather, extended.peer_timeout)
        # One worker may have counted what made no other wait. The gather took a number.
        points.count = int(table[:, 1].max()) + 1
        mine: list[int] = table[:, 0].tolist()
        return mine

    def waiting(self, wait: str) -> contextlib.AbstractContextManager[None]:
        """Surrounds a wait for all workers, one of `calls.WAITS`."""
        return waits.waiting(self.strategy.waits, wait)

    def _with_checks(self, model: keras.Model, arguments: dict[str, Any]) -> _Epochs:
        """Adds callbacks to those of this worker; returns what has them."""
        epochs = _Epochs(self, model)
        if self._needs_to_agree:
            given = callbacks_of(arguments)
            around = epochs.around(given)
            if isinstance(arguments["callbacks"], keras.callbacks.CallbackList):
                given[:] = around
            else:
                arguments["callbacks"] = around
        return epochs

    @contextlib.contextmanager
    def _keeping(self, model: keras.Model, arguments: dict[str, Any]) -> Iterator[None]:
        """Chooses the callbacks of this worker, with one that keeps checkpoints."""
        given, epochs = arguments.get("callbacks"), arguments.get("epochs", 1)
        every = with_history(given)
        with self._keeper.keeping(model, every, epochs) as kept:
            if kept is None:
                chosen = callbacks.for_worker(given, self.peers)
            else:
                is_list = isinstance(given, keras.callbacks.CallbackList)
                given = given if is_list else every
                chosen = callbacks.for_worker(given, self.peers, kept)
            arguments["callbacks"] = chosen
            yield

    def _together(self, one_by_one: bool) -> contextlib.AbstractContextManager[None]:
        """Takes steps together during a call, unless a callback sees each batch.

        All workers have to run the same functions: each takes steps one by one if a
        callback of another worker sees them.
        """
        gather = self.strategy.extended.gather_numbers
        stride = None
        if not one_by_one:
            stride = CommonStride(lambda mine: int(gather([mine]).max()))
        return setting(_stride, stride)

    def steps(
        self, epoch_iterator: EpochIterator, steps: Iterator[Stride]
    ) -> Iterator[Any]:
        """Takes several steps of an epoch together, where nobody sees each of them."""
        steps = self._keeper.follow(epoch_iterator, steps)
        if (stride := _stride.get()) is None:
            return steps
        stride.start()
        # One function runs any number of steps, so none has to be split.
        return in_strides(epoch_iterator, steps, stride.steps, (), is_shown=True)

    @contextlib.contextmanager
    def storing(self, model: keras.Model, operation: str) -> Iterator[bool]:
        """Yields whether this worker stores: the chief alone writes, outside of the scope.

        While it saves, Keras creates an optimizer to compare with. In the scope, creating
        its variables is a collective, and the other workers, which do not save, would
        never join it.
        """
        is_own = getattr(model, "distribute_strategy", None) is self.strategy
        if not is_own:
            yield True
        elif operation != "load" and not self.strategy.is_chief:
            yield False
        else:
            with outside_of_scope():
                yield True
