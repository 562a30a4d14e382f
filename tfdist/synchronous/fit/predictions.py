"""A model's predict step, run on all replicas together."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras import building
from tfdist.keras.batch_structure import BatchStructure
from tfdist.peers.input import ShardedIterator
from tfdist.synchronous.fit.model_functions import ModelFunctions
from tfdist.synchronous.fit.run import ShareFunction, on_batch
from tfdist.synchronous.replica.all_rows import AllRows
from tfdist.synchronous.replica.computation import tracing
from tfdist.synchronous.replica.step import ReplicaStep


class ReplicaPredictions(ModelFunctions):
    """Predicts on all replicas. Every worker gets the outputs of all of them."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._step = building.step_of(model, building.PREDICT)

    def on_data(self, data: ShardedIterator) -> Any:
        """Returns the outputs of the next batch.

        Raises:
            StopIteration: If the data of all workers has ended.
            PeerLostError: If another task ended or does not respond.
        """
        with self.naming_errors(data.structure.has_fixed_rows):
            ran, outputs = self._on_shares(data)(data.values)
            if not int(ran):
                raise StopIteration
            return outputs

    def _on_shares(self, shares: ShardedIterator) -> Callable[..., Any]:
        attempt = ShareFunction(
            self.strategy,
            shares.structure,
            shares.totals,
            self._run,
        )
        return self.function(
            self.key_of(shares),
            shares.structure,
            lambda values: self._local(attempt(values)),
        )

    def on_batch(self, batch: Any) -> Any:
        """Returns the outputs of a batch that every worker has in full."""
        structure = BatchStructure.of_batch(batch)

        def execute(*present: Any) -> Any:
            return self._local(on_batch(self.strategy, structure, present, self._run))

        with self.naming_errors():
            function = self.function(
                structure.key, structure, execute, structure.present
            )
            return function(*structure.flatten(batch))

    def rehearse(self, structure: BatchStructure, batch: Any) -> None:
        """Traces one replica's step on a symbolic batch, as the only replica."""
        with tracing(self.only_replica(structure, batch)):
            self._step(batch)

    def _run(self, step: ReplicaStep, batch: Any) -> Any:
        outputs = self._step(batch)
        rows = AllRows(step, keras.tree.flatten(outputs)).concatenated()
        return keras.tree.pack_sequence_as(outputs, rows)

    def _local(self, values: Any) -> Any:
        return tf.nest.map_structure(
            lambda each: self.strategy.experimental_local_results(each)[0], values
        )
