"""The steps that workers were asked for and have not been seen to finish."""

import collections
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist import _tf, supervision
from tfdist.keras.patience import Patience
from tfdist.keras.step_error import shortened
from tfdist.watchdog import StalledError

_log = logging.getLogger("tfdist")

# Each worker has one step to run and a few to follow. TensorFlow's own queue holds
# 256k, and with it the batches of as many steps.
STEPS_PER_WORKER = 4

# How many results may wait for that of a slow worker, for each function under way: a
# worker that much slower than the others holds them up.
_RESULTS_AHEAD = 32
_MOMENT = 0.005  # seconds


class InFlight:
    """Schedules functions on the workers, with a bound on how many are under way.

    Args:
        coordinator: Sends functions to workers.
        limit: The number of functions under way at once, at most.
        patience: How to wait; without one, as TensorFlow does, without a deadline.

    Attributes:
        submitted: How many functions were submitted.
        finished: How many of the first of these have finished for certain.
        stalls: Whether the last wait was given up.
    """

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        limit: int,
        patience: Patience | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._patience = patience
        self.limit = limit
        self._pending: collections.deque[tuple[Any, Callable[[Any], None]]] = (
            collections.deque()
        )
        self._under_way: list[Any] = []
        self.submitted = 0
        self.finished = 0
        self.stalls = False

    def submit(
        self,
        function: Any,
        argument: Any,
        on_result: Callable[[Any], None] = lambda _: None,
    ) -> Any:
        """Sends a function to whichever worker is free; waits if too many are out.

        Args:
            function: A `ConcreteFunction`.
            argument: Its only argument.
            on_result: Called with the fetched result, in the order of submission,
                at the latest by `join`.

        Returns:
            The remote value of its result.

        Raises:
            tf.errors.OpError: What an earlier function failed with.
            StalledError: If training stands still.
        """
        self._make_room()
        output = self.schedule(function, argument)
        self.stalls = False
        self._pending.append((output, on_result))
        self._under_way.append(output)
        self.submitted += 1
        return output

    def _make_room(self) -> None:
        """Waits until fewer than `limit` are under way, whichever has ended."""
        while self._pending and _tf.wait_for_result(self._pending[0][0], 0):
            self.finish_oldest()
        while len(self._pending) >= self.limit * _RESULTS_AHEAD:
            self.finish_oldest()
        with self._waiting():
            while self._count_under_way() >= self.limit:
                # It need not be the oldest that ends first, but mostly is.
                _tf.wait_for_result(self._under_way[0], _MOMENT)
                self._check()

    def _waiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self._patience is None else self._patience.waiting()

    def _check(self) -> None:
        if self._patience is not None:
            try:
                self._patience.check()
            except StalledError:
                self._give_up()
                raise

    def _count_under_way(self) -> int:
        self._under_way = [
            each for each in self._under_way if not _tf.wait_for_result(each, 0)
        ]
        return len(self._under_way)

    def schedule(self, function: Any, argument: Any) -> Any:
        """Sends a function whose result the caller fetches; waits for nothing.

        Args:
            function: A `ConcreteFunction`.
            argument: Its only argument.

        Returns:
            The remote value of its result, for `fetch`.

        Raises:
            tf.errors.OpError: What an earlier function failed with.
        """
        try:
            return self._coordinator.schedule(function, args=(argument,))
        except Exception as error:
            self._forget()
            raise _shortened(error) from None

    def fetch(self, output: Any) -> Any:
        """Waits for one function, and returns its result.

        Raises:
            tf.errors.OpError: What it, or another, failed with. None is under way.
        """
        try:
            if self._patience is not None:
                self._patience.wait_for(output)
            return output.get()
        except StalledError:
            self._give_up()
            raise
        except Exception as error:
            self._forget()
            # A function cancelled because another failed: join says why. Left with
            # the coordinator, the error would be raised again by the next call.
            self._join()
            raise _shortened(error) from None

    def finish_oldest(self) -> None:
        """Waits for the function submitted first and hands its result over."""
        output, on_result = self._pending.popleft()
        on_result(self.fetch(output))
        if self.finished == 0:
            supervision.tell("training")
        self.finished += 1

    def join(self) -> None:
        """Waits for every function, and hands all results over.

        Raises:
            tf.errors.OpError: What a function failed with.
        """
        self._join()
        while self._pending:
            self.finish_oldest()

    def _join(self) -> None:
        try:
            if self._patience is not None:
                self._patience.wait_for_all([output for output, _ in self._pending])
            self._coordinator.join()
        except StalledError:
            self._give_up()
            raise
        except Exception as error:
            self._forget()
            raise _shortened(error) from None

    def _give_up(self) -> None:
        self._forget()
        self.stalls = True

    def _forget(self) -> None:
        # None is under way any longer, and none will be fetched.
        self._pending.clear()
        self._under_way.clear()
        self.finished = self.submitted

    def settle(self) -> None:
        """Waits for every function, when another error is already on its way."""
        if self.stalls:
            return
        try:
            self.join()
        except Exception as error:
            _log.warning("while waiting for the steps under way: %s", error)


def _shortened(error: Exception) -> Exception:
    return shortened(error) if isinstance(error, tf.errors.OpError) else error
