"""The gate of each policy, made when it is first needed."""

import contextlib
import dataclasses
import functools
import os
from typing import Any

import tensorflow as tf

from tfdist.consistency.asynchronous import Asynchronous
from tfdist.consistency.bounded_staleness import BoundedStaleness
from tfdist.consistency.combinations import decides_as, is_free
from tfdist.consistency.policy import Consistency
from tfdist.consistency.staleness import StalenessReport
from tfdist.consistency.synchronous import Synchronous
from tfdist.consistency.timeline import TimelineFile, events_of
from tfdist.graph.tasks import device_of
from tfdist.parameter_server.gate.bounded_gate import BoundedGate
from tfdist.parameter_server.gate.counting_gates import OpenGate, RoundGate
from tfdist.parameter_server.gate.gate import Gate
from tfdist.parameter_server.gate.meter import Meter
from tfdist.parameter_server.gate.policy_gate import PolicyGate
from tfdist.parameter_server.seam.ps_strategy import PsStrategy


class Gates:
    """The gates of a strategy."""

    def __init__(
        self, strategy: PsStrategy, timeline: str | os.PathLike[str] | None = None
    ) -> None:
        self._strategy = strategy
        self._timeline = TimelineFile(timeline) if timeline else None
        self._gates: dict[Any, Gate] = {}

    def of(self, policy: Consistency) -> Gate | None:
        """Returns where the steps of a policy report, or None if they need not."""
        # Equal ones are the same, unless they are a user's.
        is_ours = any(decides_as(policy, k) for k in (Asynchronous, BoundedStaleness))
        key: Any = policy if is_ours else id(policy)
        if isinstance(policy, Synchronous):
            key = Synchronous  # Rounds know their numbers themselves.
        if key not in self._gates:
            self._gates[key] = self._gate(policy)
        return self._gates[key]

    def _gate(self, policy: Any) -> Gate:
        if isinstance(policy, Synchronous):
            return RoundGate(self._meter)
        if is_free(policy):
            return OpenGate(self._meter)
        number = self._strategy.num_replicas
        if decides_as(policy, BoundedStaleness):
            return BoundedGate(self._meter, number, int(policy.max_staleness))
        return PolicyGate(self._meter, number, policy)

    @property
    def error(self) -> BaseException | None:
        """The error that a policy of the user has raised, or None."""
        errors = (getattr(gate, "error", None) for gate in self._gates.values())
        return next((each for each in errors if each is not None), None)

    @functools.cached_property
    def _meter(self) -> Meter:
        """The meter on the ps with the most bytes, whose messages carry the gate's data."""
        # Variables exist by now: a gate is first asked for when a step is traced.
        sizes = self._strategy.placement_report().bytes_per_ps
        device = device_of(f"ps:{sizes.index(max(sizes))}")
        return Meter(
            device, self._strategy.num_replicas, records=self._timeline is not None
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self._strategy.replicas)

    def report(self) -> StalenessReport | None:
        """Returns the counts of all gates, or None if there is none."""
        if not self._gates:
            return None
        return dataclasses.replace(self._meter.report(), names=self._names)

    def checked_report(self) -> StalenessReport:
        """Returns the counts of all gates.

        Raises:
            RuntimeError: If nothing was counted.
        """
        report = self.report()
        if report is None:
            raise RuntimeError(
                "no step was counted. Train first, under a strategy with a policy, such "
                "as ParameterServerStrategy(consistency=tfdist.Asynchronous()): without "
                "one, steps are not measured"
            )
        return report

    def write_timeline(self) -> None:
        """Adds the records since the last write to the file."""
        if self._timeline is not None and self._gates:
            times = self._meter.take_times()
            self._timeline.add(events_of(times, self._names))

    def reset(self) -> None:
        """Forgets all steps. Call it while none is in flight."""
        # A ps that has gone meanwhile must not hide the error that led here.
        with contextlib.suppress(tf.errors.OpError):
            for gate in self._gates.values():
                gate.reset()

    def leave(self, worker: int) -> None:
        """Takes a lost worker's step out, so that nobody waits for it."""
        # A ps that is lost too takes its gate along, and ends the program.
        with contextlib.suppress(tf.errors.OpError):
            for gate in self._gates.values():
                gate.leave(worker)
