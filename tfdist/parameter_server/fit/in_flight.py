"""The steps that workers were asked for and have not been seen to finish."""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist.liveness import supervision
from tfdist.liveness.patience import Patience
from tfdist.liveness.step_error import shortened
from tfdist.liveness.watchdog import StalledError

_log = logging.getLogger("tfdist")

# Each worker has one step to run and a few to follow. TensorFlow's own queue holds
# 256k, and with it the batches of as many steps.
STEPS_PER_WORKER = 4

_MOMENT = 0.005  # seconds


@dataclass(frozen=True, eq=False)
class _Function:
    """One that was submitted, the `number`-th."""

    number: int
    argument: Any
    output: Any
    on_result: Callable[[Any], None]


class InFlight:
    """Schedules functions on the workers, with a bound on how many are under way.

    A slow worker holds up nothing but its own: the others go on.

    Args:
        coordinator: Sends functions to workers.
        limit: The number of functions under way at once, at most.
        patience: How to wait; without one, as TensorFlow does, without a deadline.

    Attributes:
        submitted: How many functions were submitted.
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
        self._under_way: list[_Function] = []
        self._newest_result = 0
        self._submitter: int | None = None
        self.submitted = 0
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
            on_result: Called with the fetched result, at the latest by `join`; not if
                that of a function submitted later was there before it.

        Returns:
            The remote value of its result.

        Raises:
            tf.errors.OpError: What an earlier function failed with.
            StalledError: If training stands still.
        """
        self._submitter = threading.get_ident()
        self._make_room()
        output = self.schedule(function, argument)
        self.stalls = False
        self.submitted += 1
        self._under_way.append(_Function(self.submitted, argument, output, on_result))
        return output

    @property
    def finished(self) -> int:
        """How many functions have finished for certain, whichever these are."""
        return self.submitted - len(self._under_way)

    def under_way(self, first: int) -> list[Any]:
        """The arguments of those of the `first` functions that may be under way."""
        return [each.argument for each in self._under_way if each.number <= first]

    def _make_room(self) -> None:
        """Waits until fewer than `limit` are under way, whichever has ended."""
        self._take_results()
        with self._waiting():
            while len(self._under_way) >= self.limit:
                # It need not be the oldest that ends first, but mostly is.
                _tf.wait_for_result(self._under_way[0].output, _MOMENT)
                self._check()
                self._take_results()

    def _take_results(self) -> None:
        ended = [_tf.wait_for_result(each.output, 0) for each in self._under_way]
        both = list(zip(self._under_way, ended, strict=True))
        self._under_way = [function for function, has_ended in both if not has_ended]
        for function, has_ended in both:
            if has_ended:
                self._take_result(function)

    def _take_result(self, function: _Function) -> None:
        result = self.fetch(function.output)
        if self._newest_result == 0:
            supervision.report_training()
        if function.number > self._newest_result:
            self._newest_result = function.number
            function.on_result(result)

    def _waiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self._patience is None else self._patience.waiting()

    def _check(self) -> None:
        if self._patience is not None:
            try:
                self._patience.check()
            except StalledError:
                self._give_up()
                raise

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

    def join(self) -> None:
        """Waits for every function, and takes all results.

        Raises:
            tf.errors.OpError: What a function failed with.
        """
        self._join()
        self._take_results()

    def join_own(self) -> None:
        """Waits for the functions that this thread has submitted.

        It does nothing in another thread, since whoever submits meanwhile would keep it
        waiting, nor after a wait that was given up.

        Raises:
            tf.errors.OpError: What a function failed with.
        """
        if self._submitter == threading.get_ident() and not self.stalls:
            self.join()

    def _join(self) -> None:
        try:
            if self._patience is not None:
                self._patience.wait_for_all([each.output for each in self._under_way])
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
        self._under_way.clear()

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
