"""Gets what the workers have kept back to the ps before anything else reads it."""

import functools
import logging
from typing import Any

from tfdist import _tf
from tfdist.parameter_server.caching.cached_steps import CachedSteps

_log = logging.getLogger("tfdist")


class Caches:
    """What the workers of a strategy keep.

    Args:
        strategy: The `ParameterServerStrategy`.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._used: dict[int, CachedSteps] = {}

    def use(self, steps: CachedSteps) -> None:
        """Notes that such steps were sent to workers, which may keep changes back."""
        self._used[id(steps.first)] = steps.first

    def flush(self) -> None:
        """Has every worker send what it has kept back, and waits for it.

        Cost: a message to each worker; from each, what has changed.

        Raises:
            tf.errors.OpError: If a ps cannot be reached.
            StalledError: If a worker does not answer.
        """
        if not self._used:
            return
        used = list(self._used.values())
        # Those that are under way keep back changes after this.
        if not self._strategy.in_flight.under_way():
            self._used = {}
        for steps in used:
            here = self._strategy.replicas_here
            outputs = _tf.run_on_workers(self._strategy.coordinator, steps.flush, here)
            for index, output in outputs.items():
                self._strategy.in_flight.wait_until(
                    functools.partial(_tf.has_run, output)
                )
                if _tf.was_lost(output):
                    self._warn(index)

    def lose(self, replica: int) -> None:
        """Warns if a replica that is lost may have kept changes back."""
        if self._used:
            self._warn(replica)

    def _warn(self, replica: int) -> None:
        _log.warning(
            "worker %s was lost, and with it the changes that it had kept back: of each "
            "weight those of at most max_age=%s of its steps",
            self._strategy.replicas[replica].name,
            getattr(self._strategy.exchange, "max_age", "?"),
        )
