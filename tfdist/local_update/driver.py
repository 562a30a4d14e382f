"""Training by `fit` under a `LocalUpdateStrategy`."""

import contextlib
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras

from tfdist._support.types import Logs, Nest
from tfdist.cluster.liveness import supervision
from tfdist.keras import building
from tfdist.keras.default_driver import DefaultDriver
from tfdist.keras.functions import PredictFunction, StepFunction
from tfdist.local_update import arguments, rejoin
from tfdist.local_update.callbacks import BeginRounds, EpochLogs, of_fit
from tfdist.local_update.handover import FitPlace, check_data, packed, take_over
from tfdist.local_update.join import Joined
from tfdist.local_update.local_peers import LocalPeers, StartRecord
from tfdist.local_update.mix import Mix, MixSettings
from tfdist.local_update.mixing import Mean
from tfdist.local_update.rejoin import RejoinListener
from tfdist.local_update.rejoining import State
from tfdist.local_update.sharing import SharedData
from tfdist.local_update.steps import LocalFunction, LocalSteps
from tfdist.peers import agreement
from tfdist.peers.callbacks import resume_at
from tfdist.peers.shares import UnequalDataError


@dataclasses.dataclass
class _Call:
    """A call of `fit`, `evaluate` or `predict`, and whether it has asked for data."""

    model: keras.Model
    method: str
    arguments: dict[str, Any]
    has_data: bool = False


class LocalUpdateDriver(DefaultDriver):
    """Trains a model in this process, and mixes it with the others' now and then.

    `evaluate` and `predict` run here, on all of the data, with this worker's model.
    Workers that were lost ask a `RejoinListener` to come back. This worker comes back by
    `joined.rejoining`, if it was started again.
    """

    def __init__(
        self,
        strategy: Any,
        joined: Joined,
        workers: LocalPeers,
        settings: MixSettings,
    ) -> None:
        super().__init__(strategy)
        self._exchange = joined.exchange
        self._workers = workers
        self._settings = settings
        self._is_mean = isinstance(settings.mixing, Mean)
        self._described = settings.described(workers.members.present)
        words = ", ".join(f"{k}={v!r}" for k, v in self._described.items())
        self._words = words
        self._rejoin_listener = RejoinListener(
            joined.mailboxes, lambda r: rejoin.refusal(r, self._fits, words)
        )
        self._rejoining = joined.rejoining
        self._fits = 0
        # The place of the others while this worker, which came back, catches up.
        self._ahead: FitPlace | None = None
        self._shares: SharedData | None = None
        self._mixes: weakref.WeakKeyDictionary[keras.Model, Mix] = (
            weakref.WeakKeyDictionary()
        )
        self._calls: list[_Call] = []
        self._logs: EpochLogs | None = None

    @property
    def calls(self) -> int:  # type: ignore[override]
        """The number of the `fit` that comes next, or is running, and if it is."""
        return 2 * self._fits - bool(self._calls)

    @property
    def is_coming_back(self) -> bool:
        """True if this worker was started again, and `fit` has not let it in yet."""
        return self._rejoining is not None

    def train_function(self, model: keras.Model) -> Callable[[Iterator[Nest]], Logs]:
        """Returns the function that trains this worker's model."""
        step = building.step_of(model, building.TRAIN)
        return StepFunction(model, LocalSteps(model, step, self._mix(model)))

    def test_step_function(self, model: keras.Model) -> Callable[[Nest], Nest]:
        """Returns the function that evaluates this worker's model."""
        return LocalFunction(model, building.step_of(model, building.TEST)).on_batch

    def predict_function(self, model: keras.Model) -> Callable[[list[Nest]], Nest]:
        """Returns the function that predicts with this worker's model."""
        return PredictFunction(LocalFunction(model, model.predict_step))

    def data(self, adapter: Any) -> Any:
        """Returns this worker's share of what `fit` trains on, or all of other data.

        Raises:
            UnequalDataError: If each worker has its own dataset, and nobody said how many
                batches an epoch has.
        """
        call = self._calls[-1] if self._calls else None
        if call is None or call.method != "fit" or call.has_data:
            return adapter.get_tf_dataset()
        # The data that `fit` asks for next is what it validates on.
        call.has_data = True
        place = self._ahead.data if self._ahead else None
        shares = self._shares = SharedData(adapter, self._workers, place)
        if shares.is_own and not call.arguments.get("steps_per_epoch"):
            raise UnequalDataError(
                "each worker has its own dataset (AutoShardPolicy), and they may have "
                "different numbers of batches; models are mixed after equally many. "
                "Repeat the dataset, and pass steps_per_epoch to fit"
            )
        return shares

    @contextlib.contextmanager
    def running(
        self, model: keras.Model, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Starts `fit` from the chief's state, and ends it with a last mix."""
        self._calls.append(_Call(model, method, arguments))
        try:
            # A callback may call `fit` on another model: all workers then do.
            with self._fitting(model, arguments) if method == "fit" else _NOTHING:
                yield
        finally:
            self._calls.pop()

    @contextlib.contextmanager
    def _fitting(self, model: keras.Model, arguments: dict[str, Any]) -> Iterator[None]:
        outer_logs, outer_shares = self._logs, self._shares
        # A `fit` that a callback calls within another one does not count.
        self._fits += len(self._calls) == 1
        self._exchange.fit = self._fits
        try:
            state = self._come_back(arguments)
            record = self._ahead.record if self._ahead else StartRecord()
            with self._workers.starting(record, replays=state is not None):
                agreement.check_settings(self._described, self._workers)
                agreement.check_arguments(arguments, self._workers)
                self._logs = EpochLogs(
                    self._exchange, self._is_mean, lambda: self._mix(model)
                )
                begin = BeginRounds(
                    lambda: self._mix(model), lambda: self._begun(model, record, state)
                )
                arguments["callbacks"] = of_fit(
                    arguments.get("callbacks"), self._workers, self._logs, begin
                )
                yield
            if state is not None:
                resume_at(model, None)
            self._mix(model).finish()
            self._exchange.barrier()
        except BaseException:
            # The others would wait for a worker that still runs, and trains no more.
            self._exchange.leave()
            raise
        finally:
            self._exchange.rejoin_listener = None
            self._logs, self._shares = outer_logs, outer_shares

    def _come_back(self, arguments: dict[str, Any]) -> State | None:
        """Waits until the others have let this worker in, if it was started again."""
        rejoining, self._rejoining = self._rejoining, None
        if rejoining is None:
            return None
        check_data(arguments.get("x"))
        state = rejoining.enter(self._fits, self._words)
        self._ahead = FitPlace.of(state[0])
        return state

    def _begun(
        self, model: keras.Model, record: StartRecord, state: State | None
    ) -> None:
        """Takes over the state of the others, if they began before this worker."""
        self._workers.started()
        mix = self._mix(model)
        if state is not None:
            take_over(state, model, mix)
            supervision.report_training()
        # A callback that calls `fit` on another model has its own steps to count.
        if len(self._calls) == 1:
            mix.hand_over = lambda uncounted: self._hand_over(model, record, uncounted)
            self._exchange.rejoin_listener = self._rejoin_listener

    def _hand_over(
        self, model: keras.Model, record: StartRecord, uncounted: int
    ) -> None:
        assert self._logs is not None
        assert self._shares is not None
        mix = self._mix(model)
        data = self._shares.place(uncounted)
        place = FitPlace(self._fits, self._logs.epoch, mix.steps, data, record)
        self._exchange.hand_over(*packed(place, model, mix))

    def steps(self, epoch_iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Passes on every step; mixes after the last one of the last epoch.

        A worker that comes back leaves out those which the others took without it.

        So the last validation and callbacks' saves are of the model that `fit` returns.
        """
        ahead, self._ahead = self._ahead, None
        size = self._calls[-1].model.steps_per_execution if self._calls else 1
        if ahead is not None:
            for _, _, data in itertools.islice(steps, ahead.steps // size):
                # Opened, so that the next epoch opens the data of that one.
                _ = data.values
            self._mix(self._calls[-1].model).steps = ahead.steps
        yield from steps
        call = self._calls[-1] if self._calls else None
        if call is None or call.method != "fit" or self._logs is None:
            return
        if self._logs.is_last_epoch:
            self._mix(call.model).finish()

    @contextlib.contextmanager
    def storing(self, model: keras.Model, operation: str) -> Iterator[bool]:
        """Yields whether this worker stores: to write is for the chief alone."""
        is_own = getattr(model, "distribute_strategy", None) is self.strategy
        yield not is_own or operation == "load" or self._workers.is_chief

    def _mix(self, model: keras.Model) -> Mix:
        if model not in self._mixes:
            arguments.check_not_inner(self._settings.outer_optimizer, model)
            if self._is_mean:
                arguments.check_no_own_average(model)
            self._mixes[model] = Mix(model, self._exchange, self._settings)
        return self._mixes[model]


_NOTHING = contextlib.nullcontext()
