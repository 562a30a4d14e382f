"""The driver of `SynchronousStrategy`: how `fit` trains in lockstep."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint.fit_state import with_history
from tfdist.checkpoint.keeper import Keeper
from tfdist.keras import building
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.default_driver import DefaultDriver
from tfdist.keras.functions import PredictFunction, StepFunction
from tfdist.keras.scope import outside_of_scope
from tfdist.keras.strides import callbacks_of, in_strides, sees_batches
from tfdist.liveness.peers import naming_lost_peers
from tfdist.peers import agreement, callbacks, calls
from tfdist.peers.input import ShardedData, check_read_once
from tfdist.synchronous.fit import fixed_rows, refusals
from tfdist.synchronous.fit.model_functions import runs_eagerly
from tfdist.synchronous.fit.steps import ReplicaPredictions, ReplicaSteps
from tfdist.synchronous.fit.stride import CommonStride

# Of the current call of `fit` or `evaluate`; None for one step at a time.
_stride: ContextVar[CommonStride | None] = ContextVar("stride", default=None)


class _ScriptPeers:
    """The processes that run the script of a `SynchronousStrategy`, as `Peers`."""

    def __init__(self, strategy: Any) -> None:
        extended = strategy.extended
        self.num_workers: int = strategy.num_workers
        self.num_replicas: int = strategy.num_replicas
        self.worker_index: int = extended.worker_index
        self.is_chief: bool = strategy.is_chief
        self.gather_numbers = extended.gather_numbers
        self.gather_texts = extended.gather_texts
        self.copy_from_chief = strategy.copy_from_chief
        self.distribute_shares = strategy.distribute_shares


class SynchronousDriver(DefaultDriver):
    """Runs every step on all replicas together, each on its rows of the batch."""

    in_unison = True

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy)
        self._is_within = False
        self._keeper = Keeper(
            strategy.checkpoints, lambda: strategy.extended, self.join
        )

    @functools.cached_property
    def _peers(self) -> _ScriptPeers:
        return _ScriptPeers(self.strategy)

    def train_function(self, model: Any) -> Callable[[Iterator[Any]], Any]:
        """Checks the model and returns the function that trains it on all replicas.

        Raises:
            SynchronousTrainingError: If a layer needs more than a part of a batch.
        """
        refusals.check_model(model)
        step = building.step_of(model, building.TRAIN)
        return StepFunction(model, ReplicaSteps(model, step))

    def test_function(self, model: Any) -> Callable[[Iterator[Any]], Any]:
        """Returns the function that runs test steps on all replicas."""
        step = building.step_of(model, building.TEST)
        return StepFunction(model, ReplicaSteps(model, step))

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """Returns the function that predicts on all replicas."""
        return PredictFunction(ReplicaPredictions(model))

    def data(self, adapter: Any) -> ShardedData:
        """Returns this worker's share of the data."""
        return ShardedData(adapter, self._peers, self._keeper.start_of_data())

    def build(self, model: Any, element_spec: Any) -> None:
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
        self, model: Any, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Starts `fit` from the same state on all workers, and names a lost worker."""
        strategy, extended = self.strategy, self.strategy.extended
        is_alone = strategy.has_one_script or strategy.num_workers == 1
        # `fit` validates on the same generator after each epoch, and reads on.
        if not is_alone and not arguments.get("_use_cached_eval_dataset"):
            check_read_once(arguments)
        lost_peers = extended.lost_peers
        with (
            calls.naming_lone_calls(),
            naming_lost_peers(lost_peers),
            extended.call(),
        ):
            with contextlib.ExitStack() as stack:
                if method == "fit":
                    self.agree(method)
                    agreement.check_arguments(arguments, self._peers)
                    stack.enter_context(self._keeping(model, arguments))
                stack.enter_context(self._together(model, method, arguments))
                stack.enter_context(self._within())
                yield
            if method == "fit" and strategy.num_workers > 1:
                # After `fit`, every worker may load what the chief's callbacks wrote.
                strategy.barrier()

    def agree(self, call: str, number: int = 0, is_of_keras: bool = False) -> list[int]:
        """Checks that all workers begin the same call. Returns the number of each.

        Args:
            call: One of `calls.CALLS`.
            number: This worker's.
            is_of_keras: Whether `fit` makes the call, and no callback.

        Raises:
            LoneCallError: If another worker begins another call.
        """
        if self.strategy.has_one_script or self.strategy.num_workers == 1:
            return [number]
        extended = self.strategy.extended
        # A barrier is there to wait for what another worker does alone.
        ends = self._is_within and not is_of_keras and call != calls.BARRIER
        return calls.agree(
            call,
            number,
            extended.worker_names,
            extended.gather_numbers,
            extended.peer_timeout,
            ends,
        )

    @contextlib.contextmanager
    def _within(self) -> Iterator[None]:
        before, self._is_within = self._is_within, True
        try:
            yield
        finally:
            self._is_within = before

    @contextlib.contextmanager
    def _keeping(self, model: Any, arguments: dict[str, Any]) -> Iterator[None]:
        """Chooses the callbacks of this worker, with one that keeps checkpoints."""
        given, epochs = arguments.get("callbacks"), arguments.get("epochs", 1)
        every = with_history(given)
        with self._keeper.keeping(model, every, epochs) as kept:
            if kept is None:
                chosen = callbacks.for_worker(given, self._peers)
            else:
                is_list = isinstance(given, keras.callbacks.CallbackList)
                given = given if is_list else every
                chosen = callbacks.for_worker(given, self._peers, kept)
            arguments["callbacks"] = chosen
            yield

    @contextlib.contextmanager
    def _together(
        self, model: Any, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Takes steps together during a call, unless a callback sees each batch.

        All workers have to run the same functions: each takes steps one by one if a
        callback of another worker sees them.

        Cost: a message of 8 or 16 bytes per worker.
        """
        given = callbacks_of(arguments)
        stage = building.STAGES[method] if method != "predict" else None
        one_by_one = stage is None or runs_eagerly(model) or sees_batches(given, stage)
        gather = self.strategy.extended.gather_numbers
        if method == "fit":
            any_one_by_one = gather([one_by_one]).any()
        else:
            is_of_keras = bool(arguments.get("_use_cached_eval_dataset"))
            any_one_by_one = any(self.agree(method, int(one_by_one), is_of_keras))
        stride = None
        if not any_one_by_one:
            stride = CommonStride(lambda mine: int(gather([mine]).max()))
        token = _stride.set(stride)
        try:
            yield
        finally:
            _stride.reset(token)

    def steps(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Takes several steps of an epoch together, where nobody sees each of them."""
        steps = self._keeper.follow(epoch_iterator, steps)
        if (stride := _stride.get()) is None:
            return steps
        stride.start()
        # One function runs any number of steps, so none has to be split.
        return in_strides(epoch_iterator, steps, stride.steps, (), is_shown=True)

    @contextlib.contextmanager
    def storing(self, model: Any, operation: str) -> Iterator[bool]:
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
