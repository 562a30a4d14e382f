"""The functions of one model, traced by all workers alike."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Nest
from tfdist.cluster.liveness.peers import naming_lost_peers
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.building import trace_with_state
from tfdist.peers.input import ShardedIterator
from tfdist.peers.shares import naming_unequal_data, row_count
from tfdist.synchronous.fit.fixed_rows import explained
from tfdist.synchronous.fit.refusals import check_is_not_compiled
from tfdist.synchronous.replica.all_rows import refusal_in
from tfdist.synchronous.replica.step import ReplicaStep


def runs_eagerly(model: keras.Model) -> bool:
    """Returns True if a model's steps run without a graph, as all functions may."""
    return bool(model.run_eagerly) or tf.config.functions_run_eagerly()


class ModelFunctions:
    """The functions of one model, each traced once per structure of batches.

    All workers trace the same functions the same number of times, for any sizes of
    their shares. TensorFlow matches collectives between workers by their number: each call
    of a function draws the next numbers for its collectives in the order in which they
    were traced. Workers that call differently traced functions would wait for each other
    in different collectives.
    """

    data_type = ShardedIterator

    def __init__(self, model: keras.Model) -> None:
        check_is_not_compiled(model)
        self.model = model
        self.strategy = model.distribute_strategy
        self._traced: dict[str, Callable[..., Nest]] = {}

    def function(
        self,
        key: str,
        structure: BatchStructure,
        execute: Callable[..., Nest],
        signature: Any = None,
    ) -> Callable[..., Nest]:
        """Returns a function of tensors, traced, unless the model runs eagerly.

        Args:
            key: A key that tells its batches from those of others.
            structure: The structure of these batches.
            execute: The function that computes it.
            signature: Its arguments' signature; without one, that of its first call.
        """
        if runs_eagerly(self.model):
            return execute
        if key in self._traced:
            return self._traced[key]
        execute = tf.autograph.experimental.do_not_convert(execute)

        def trace(*args: object) -> Nest:
            # Another one for each attempt: TensorFlow's remembers that one has failed.
            traced = _tf.function(execute, signature)
            results = traced(*args)
            self._traced[key] = traced
            return results

        def first_call(*args: object) -> Nest:
            return trace_with_state(self.model, structure.specs, lambda: trace(*args))

        return first_call

    def on_batch(self, batch: Any) -> Any:
        """Runs one step on a batch that every worker has in full."""
        structure = BatchStructure.of_batch(batch)

        def execute(*present: Any) -> Any:
            return self._on_present(structure, present)

        with self.naming_errors():
            specs = structure.present
            function = self.function(structure.key, structure, execute, specs)
            return function(*structure.flatten(batch))

    def _on_present(self, structure: BatchStructure, present: tuple[Any, ...]) -> Any:
        """Returns the result of a step on the values that a batch has."""
        raise NotImplementedError

    def only_replica(self, structure: BatchStructure, batch: Any) -> ReplicaStep:
        """Returns a step to rehearse on a symbolic batch with all rows."""
        rows = row_count(structure.flatten(batch)[0])
        return ReplicaStep(
            tf.zeros([], tf.int64),
            rows,
            rows,
            structure.has_varying_rows,
            is_rehearsal=True,
            whole_batch=self.strategy.whole_batch,
            is_mean=self.strategy.replica_loss == "mean",
        )

    @staticmethod
    def key_of(shares: ShardedIterator) -> str:
        """Returns a key that tells batches of one structure from those of another."""
        return f"{shares.structure.key} {shares.totals}"

    @contextmanager
    def naming_errors(self, has_fixed_rows: bool = True) -> Iterator[None]:
        """Makes errors say which task was lost, or what was refused in a step.

        Args:
            has_fixed_rows: Whether all batches have the same number of rows.
        """
        lost_peers = self.strategy.extended.lost_peers
        files = naming_unequal_data(self.strategy.num_workers)
        with explained(has_fixed_rows), naming_lost_peers(lost_peers), files:
            try:
                yield
            except tf.errors.OpError as error:
                if refusal := refusal_in(error):
                    raise refusal from None
                raise
