"""The functions that workers run: one or more steps on the batches of a message."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.computation import computing
from tfdist.parameter_server.caching.cached_steps import CachedSteps
from tfdist.parameter_server.exchange.narrow import NarrowComputation
from tfdist.parameter_server.feed.sources import Source, pack, tensor_specs
from tfdist.parameter_server.gate.gate import Gate
from tfdist.parameter_server.rounds.rounds import TICKET, Rounds
from tfdist.parameter_server.seam.ps_strategy import PsStrategy
from tfdist.parameter_server.step_graph.local import StepOnCopies
from tfdist.parameter_server.step_graph.repetition import State, repeated
from tfdist.parameter_server.step_graph.step_graph import StepGraph
from tfdist.parameter_server.step_graph.unrolling import copies, is_optimized
from tfdist.variables.fused_update import without_fused_updates


class WorkerFunction:
    """Makes functions of a step, which is traced once.

    Steps follow each other without a loop, since TensorFlow sends six messages per
    iteration of a loop that spans tasks. Many steps are a loop over chunks of them.

    Args:
        strategy: The strategy whose replica runs the steps.
        step: Takes a batch. If more than one step is to run, it returns a vector.
        structure: The structure of each batch.
        gate: The gate at which each step takes its turn, or None.
        rounds: The rounds that the step is part of; each batch comes with a ticket then.
        caching: Returns the step on what its worker keeps, if that keeps anything.
        learns: Whether weights and gradients travel as the strategy's `wire_dtype` says,
            and not as they are.

    Attributes:
        step: The step.
        writes_each_step: Whether each step reads from the ps and writes there.
        cached_steps: The step on what its worker keeps, if it keeps anything.
    """

    def __init__(
        self,
        strategy: PsStrategy,
        step: Callable[[Nest], Nest],
        structure: BatchStructure,
        gate: Gate | None = None,
        rounds: Rounds | None = None,
        caching: Callable[[StepGraph], CachedSteps] | None = None,
        learns: bool = False,
    ) -> None:
        self._strategy = strategy
        self._structure = structure
        self._specs = tensor_specs(structure)
        self._tickets = [] if rounds is None else [TICKET]
        is_narrow = learns and strategy.wire_dtype is not None
        run = self._on_tensors(step, rounds, is_narrow)
        # Steps with local copies write together, and take one turn.
        alone = caching is None and strategy.exchange.steps == 1
        self.writes_each_step = alone
        if not alone:
            run = without_fused_updates(run)

        entered = dict if rounds is None else rounds.entered
        specs = [*self._specs, *self._tickets]
        self._gate = gate
        self.step = StepGraph(
            strategy,
            run,
            specs,
            # Otherwise `_exchanges` have it, around all steps that write at once.
            gate if alone else None,
            entered=entered,
            is_narrow=is_narrow,
        )
        self._local_steps: StepOnCopies | None = None
        self.cached_steps: CachedSteps | None = None
        if caching is not None:
            self.cached_steps = caching(self.step)
            self.cached_steps.note(strategy.exchanges)
        elif not alone:
            self._local_steps = self._local(strategy)
        self._exchanges: dict[Any, StepGraph] = {}

    def _on_tensors(
        self, step: Callable[[Nest], Nest], rounds: Rounds | None, is_narrow: bool
    ) -> Callable[..., Any]:
        """Returns the step, in the replica's context, as a function of flat tensors."""
        strategy = self._strategy

        def run(*tensors: tf.Tensor) -> Nest:
            of_batch = list(tensors[: len(self._specs)])
            batch = pack(self._structure, of_batch)
            if is_narrow:
                with computing(NarrowComputation()):
                    return strategy.run(step, args=(batch,))
            if rounds is None:
                return strategy.run(step, args=(batch,))
            return strategy.run(rounds.in_round(step), args=(batch, tensors[-1]))

        return run

    def _local(self, strategy: PsStrategy) -> StepOnCopies:
        """Returns the step with copies, and tells the strategy what becomes of them."""
        placed = strategy.extended.placed
        captured = [outside for outside, _ in self.step.function.graph.captures]
        known = placed.of_handles(captured)
        weights = {id(each.handle) for each, _ in known if each.is_weight}
        local = StepOnCopies(self.step, lambda handle: id(handle) in weights)

        def names(handles: Sequence[tf.Tensor]) -> list[str]:
            return [name for _, name in placed.of_handles(handles)]

        strategy.exchanges.note(
            strategy.exchange.steps,
            names(local.added),
            names(local.set),
            names(local.in_each_step),
            [name for each, name in known if each.is_slot],
        )
        return local

    def function(self, source: Source, steps: int) -> Any:
        """Returns a `ConcreteFunction` of `steps` batches of a source."""

        def run(argument: Nest) -> Nest:
            # Captured here, and not within a loop, whose body gets no values at each
            # call.
            slot = [] if self._gate is None else self._gate.slot()
            if self.cached_steps is not None:
                return _unless_empty(self._from_cache(source, argument, slot, steps))
            if self._local_steps is None:
                return _unless_empty(self._one_by_one(source, argument, slot, steps))
            return _unless_empty(self._merged(source, argument, slot, steps))

        with self._strategy.scope():
            traced = tf.function(run, autograph=False)
            function = traced.get_concrete_function(source.spec(steps, self._tickets))
        _prepare_quickly(function)
        if self.cached_steps is not None:
            _tf.leave_out_constant_folding(function)
        return function

    def _one_by_one(
        self, source: Source, argument: Nest, slot: list[tf.Tensor], steps: int
    ) -> Nest:
        """Adds steps; returns the result of the last one."""

        def add(i: int | tf.Tensor, _: State) -> tuple[Nest, State]:
            tensors = [*source.tensors(argument, i, self._tickets), *slot]
            return self.step.add(tensors, "step_0"), ()

        return repeated(add, steps, copies(self.step.size))[0]

    def _from_cache(
        self, source: Source, argument: Nest, slot: list[tf.Tensor], steps: int
    ) -> Nest:
        """Adds steps on the worker's kept values; returns the last one's result."""
        cached = self.cached_steps
        assert cached
        key = source.key, 1
        if key not in self._exchanges:

            def step(argument: Nest, *kept: tf.Tensor) -> Nest:
                return cached.run(source.tensors(argument, 0), kept)

            self._exchanges[key] = StepGraph(
                self._strategy, step, [source.spec(1), *cached.specs], self._gate
            )
        graph = self._exchanges[key]

        def run(state: State, of_tables: Sequence[tf.Tensor]) -> tuple[Nest, State]:
            def add(i: int | tf.Tensor, state: State) -> tuple[Nest, State]:
                part = source.part(argument, i, 1)
                tensors = tf.nest.flatten(part, expand_composites=True)
                given = [*tensors, *state, *of_tables, *slot]
                result, after = graph.add(given, "step_0")
                return result, after

            return repeated(add, steps, copies(graph.size), state)

        return cached.around(run)

    def _merged(
        self, source: Source, argument: Nest, slot: list[tf.Tensor], steps: int
    ) -> Nest:
        """Adds steps with as few exchanges as they may have."""
        most = min(self._strategy.exchange.steps, steps)

        def add(first: int | tf.Tensor, count: int) -> Nest:
            part = source.part(argument, first, count)
            tensors = tf.nest.flatten(part, expand_composites=True)
            return self._exchange(source, count).add([*tensors, *slot], "exchange_0")

        result, _ = repeated(
            lambda i, _: (add(i * most, most), ()),
            steps // most,
            copies(self._exchange(source, most).size, most),
        )
        rest = steps % most
        return add(steps - rest, rest) if rest else result

    def _exchange(self, source: Source, steps: int) -> StepGraph:
        """Returns a graph of steps where only the first pulls and the last pushes."""
        key = source.key, steps
        if key not in self._exchanges:
            local = self._local_steps
            assert local

            def run(argument: Nest) -> Nest:
                return local.run(lambda i: source.tensors(argument, i), steps)

            self._exchanges[key] = StepGraph(
                self._strategy, run, [source.spec(steps)], self._gate, steps
            )
        return self._exchanges[key]


def _unless_empty(result: Nest) -> Nest:
    # Each result costs a message, even if it is empty.
    is_empty = isinstance(result, tf.Tensor) and result.shape.num_elements() == 0
    return None if is_empty else result


def _prepare_quickly(function: Any) -> None:
    """Keeps TensorFlow's graph optimizers from a function too large for them.

    Not if a worker has a GPU, where the layout that they choose makes convolutions faster,
    nor if the program has turned one of them on.
    """
    if is_optimized(_operations_of(function)) or _workers_have_gpus():
        return
    if not any(tf.config.optimizer.get_experimental_options().values()):
        _tf.leave_out_graph_optimizers(function)


def _operations_of(function: Any) -> int:
    """The number of its operations, and of those in its branches and loops."""
    definition = function.graph.as_graph_def()
    functions = definition.library.function
    return len(definition.node) + sum(len(each.node_def) for each in functions)


def _workers_have_gpus() -> bool:
    """Returns True if a worker of this process's cluster has a GPU."""
    devices = tf.config.list_logical_devices("GPU")
    return any("/job:worker/" in each.name for each in devices)
