"""Steps on blocks and rows that a worker keeps; some move before each step.

`Caches` sends changes that workers hold back to the ps before anything else reads them.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.parameter_server.caching.blocks import (
    Block,
    BlockState,
    blocks_of,
    kept,
    moves_of,
)
from tfdist.parameter_server.caching.report import WhenChangedReport
from tfdist.parameter_server.caching.tables import CachedTable, tables_of
from tfdist.parameter_server.exchange.kept import Kept
from tfdist.parameter_server.exchange.policies import WhenChanged
from tfdist.parameter_server.exchange.report import ExchangeReport, Exchanges
from tfdist.parameter_server.seam.ps_strategy import PsStrategy
from tfdist.parameter_server.step_graph.local import StepOnCopies
from tfdist.parameter_server.step_graph.lookups import Lookups
from tfdist.parameter_server.step_graph.repetition import State
from tfdist.parameter_server.step_graph.step_graph import StepGraph, captures_of

_log = logging.getLogger("tfdist")


class CachedSteps:
    """A step on values that its worker keeps.

    Args:
        step: The step, which reads and writes the variables themselves.
        strategy: The `ParameterServerStrategy`, whose exchange is a `WhenChanged`.
        learning_rate: Returns it, where a step is traced.
        others: The steps that keep the same values, and share them, one for each
            structure of a batch.

    Attributes:
        first: The first of those that share what they keep.
        kept: The weights that a worker keeps, and the number of its steps on them.
        kept_tables: The rows of tables that it keeps.
        flush: A `ConcreteFunction` of the first: it sends the ps the changes that a
            worker holds back, and frees the values that it keeps.
    """

    def __init__(
        self,
        step: StepGraph,
        strategy: PsStrategy,
        learning_rate: Callable[[], Any],
        others: dict[Any, "CachedSteps"],
    ) -> None:
        assert isinstance(strategy.exchange, WhenChanged)
        self._exchange = strategy.exchange
        self._learning_rate = learning_rate
        self._function = step.function
        captured = [outside for outside, _ in step.function.graph.captures]
        known = strategy.extended.placed.of_handles(captured)
        variables = [variable for variable, _ in known]
        self._tables: list[CachedTable] = []

        def tables(
            handles: Mapping[str, tf.Tensor], lookups: Mapping[str, Lookups]
        ) -> set[str]:
            self._tables = tables_of(lookups, handles, known)
            return {each for table in self._tables for each in table.placeholders}

        self._local = local = StepOnCopies(
            step, lambda _: True, lambda handles: kept(handles, variables), tables
        )
        self._blocks = blocks_of(local.variables, local.captured, known)
        self._names = {id(variable.handle): name for variable, name in known}
        key = [id(local.captured[each]) for each in self._placeholders]
        # Batches of another structure have another step, and must find the same values.
        self.first: CachedSteps = others.setdefault(tuple(key), self)
        self.kept: Kept
        self.kept_tables: Kept
        if self.first is not self:
            self.kept, self.kept_tables = self.first.kept, self.first.kept_tables
            return
        self.kept, self.kept_tables = Kept(self._state_specs), Kept(self._table_specs)
        # Its branches are functions of their own, which live as long as the graph.
        self._flush_graph = StepGraph(strategy, self._flush, self.specs)
        with strategy.scope():
            traced = tf.function(self._forget, autograph=False)
            self.flush = traced.get_concrete_function()
        # It takes an empty vector for one of the size that a branch needs: see
        # `_restored`.
        _tf.leave_out_constant_folding(self.flush)

    @property
    def _placeholders(self) -> list[str]:
        return [each for it in self._all for each in it.placeholders]

    @property
    def _all(self) -> list[Block | CachedTable]:
        return [*self._blocks, *self._tables]

    def note(self, exchanges: Exchanges) -> None:
        """Notes what becomes of the variables of the step."""

        def names(handles: Iterable[tf.Tensor]) -> list[str]:
            return [self._names[id(it)] for it in handles if id(it) in self._names]

        captured = self._local.captured
        slots = names(
            captured[name] for it in self._all for name in it.placeholders[1:]
        )
        exchanges.note(
            1,
            names(captured[each.placeholders[0]] for each in self._all),
            slots,
            names(self._local.in_each_step),
            slots,
        )

    @property
    def _state_specs(self) -> list[tf.TensorSpec]:
        steps = tf.TensorSpec([], tf.int64)
        flat: list[tf.TensorSpec] = tf.nest.flatten(
            [each.specs for each in self._blocks]
        )
        return [*flat, steps]

    @property
    def _table_specs(self) -> list[tf.TensorSpec]:
        return [spec for table in self._tables for spec in table.specs]

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The specs of the worker's values that `run` takes and returns."""
        handles = [tf.TensorSpec([], tf.resource)] * len(self._table_specs)
        return [*self._state_specs, *handles]

    def around(
        self, run: Callable[[State, Sequence[tf.Tensor]], tuple[Any, State]]
    ) -> Nest:
        """Adds steps to the function being traced, and returns their result.

        `run` takes the values that the worker has kept and the handles of what it has kept of
        tables; it returns the result and the values that the worker is to keep.
        """
        handles, of_tables = self.kept.handles(), self.kept_tables.handles()
        self.kept_tables.prepare(of_tables)
        result, state = run(self.kept.read(handles, self._cold), of_tables)
        self.kept.write(handles, state)
        return result

    def run(self, batch: Sequence[tf.Tensor], kept: State) -> tuple[Nest, State]:
        """Adds one step, before which blocks and rows move, to the function being traced.

        Takes what the worker keeps, by `specs`, and returns it with the result as it is then.
        """
        captured = captures_of(self._function)
        handles = self._local.handles(captured)
        rate = tf.cast(self._learning_rate(), tf.float64)
        states, steps, of_tables = self._unflattened(kept)
        ids = self._local.ids(batch, captured)
        for table, of_table in zip(self._tables, of_tables, strict=True):
            for each in table.ids:
                table.refresh(ids[each], of_table, handles, steps, rate, self._exchange)
        states = [
            block.refresh(state, handles, rate, self._exchange)
            for block, state in zip(self._blocks, states, strict=True)
        ]
        # In the order of `StepOnCopies`: blocks are in that of their names.
        values: list[Any] = [None] * len(self._local.variables)
        for block, state in zip(self._blocks, states, strict=True):
            values[block.weight] = state.value
            for i, slot in zip(block.slots, state.slots, strict=True):
                values[i] = slot
        own = {
            name: handle
            for table, of_table in zip(self._tables, of_tables, strict=True)
            for name, handle in table.local_handles(of_table).items()
        }
        # A lookup finds the worker's own table by the handle that stands for that on
        # the ps.
        captured = [own.get(name, handle) for name, handle in handles.items()]
        result, after = self._local.compute(batch, captured, values, ids)
        states = [
            state._replace(
                value=after[block.weight],
                slots=tuple(after[i] for i in block.slots),
                age=state.age + 1,
            )
            for block, state in zip(self._blocks, states, strict=True)
        ]
        flat = tf.nest.flatten(states)
        return result, [*flat, steps + 1]

    def _flush(self, *kept: tf.Tensor) -> None:
        """Adds operations that send all changes that a worker holds back."""
        handles = self._local.handles(captures_of(self._function))
        states, _, of_tables = self._unflattened(kept)
        for block, state in zip(self._blocks, states, strict=True):
            block.flush(state, handles)
        for table, of_table in zip(self._tables, of_tables, strict=True):
            table.flush(of_table, handles)

    def _forget(self) -> None:
        """Adds operations that send all held-back changes, and free the kept values."""
        handles, of_tables = self.kept.handles(), self.kept_tables.handles()
        self.kept_tables.prepare(of_tables)
        state = self.kept.read(handles, self._cold)
        self._flush_graph.add([*state, *of_tables], "flush_0")
        self.kept.forget(handles)
        self.kept_tables.forget(of_tables)

    def _cold(self) -> list[tf.Tensor]:
        """Returns the initial values of a worker."""
        flat = tf.nest.flatten([each.cold() for each in self._blocks])
        return [*flat, tf.zeros([], tf.int64)]

    def _unflattened(
        self, kept: Sequence[Any]
    ) -> tuple[list[BlockState], tf.Tensor, list[list[tf.Tensor]]]:
        """Returns a worker's state: blocks, the number of steps, tables."""
        structure = [each.specs for each in self._blocks]
        rest = iter(kept)
        flat = [next(rest) for _ in tf.nest.flatten(structure)]
        states = tf.nest.pack_sequence_as(structure, flat)
        steps = next(rest)
        of_tables = [
            [_of_spec(next(rest), spec) for spec in table.specs]
            for table in self._tables
        ]
        return states, steps, of_tables


class Caches:
    """The values that the workers of a strategy keep."""

    def __init__(self, strategy: PsStrategy) -> None:
        self._strategy = strategy
        self._used: dict[int, CachedSteps] = {}

    def use(self, steps: CachedSteps) -> None:
        """Notes that such steps were sent to workers, which may keep changes back."""
        self._used[id(steps.first)] = steps.first

    def flush(self) -> None:
        """Collects the changes that workers hold back, and waits for them.

        Cost: a message to each worker; from each, what has changed.

        Raises:
            tf.errors.OpError: If a ps cannot be reached.
            StalledError: If a worker does not answer.
        """
        if not self._used:
            return
        used = list(self._used.values())
        # Steps in flight hold back changes after this.
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

    def report(self, noted: ExchangeReport) -> WhenChangedReport:
        """Adds to what is noted of the variables how often each block has moved.

        Raises:
            tf.errors.OpError: While a worker or a ps is down.
        """
        return WhenChangedReport(
            sum(self._strategy.worker_report().steps),
            moves_of(self._strategy.extended.placed.existing()),
            noted.set,
            noted.in_each_step,
        )

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


def _of_spec(handle: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    _tf.set_handle_spec(handle, spec)
    return handle
