"""The steps that a worker takes on its own model."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.types import Logs, Nest
from tfdist.keras.batch_structure import BatchStructure, of_any_rows
from tfdist.local_update.mix import Mix
from tfdist.peers.input import ShardedIterator
from tfdist.peers.shares import naming_unequal_data

_as_written = tf.autograph.experimental.do_not_convert


class LocalFunction:
    """Runs a step of a model on this worker, traced once per structure of batches."""

    data_type = ShardedIterator

    def __init__(self, model: keras.Model, step: Callable[[Nest], Nest]) -> None:
        self._model = model
        # As one process does: nothing is exchanged within a step.
        self._step = tf.function(step, jit_compile=True) if model.jit_compile else step
        self._traced: dict[str, Callable[..., Any]] = {}

    def on_batch(self, batch: Nest) -> Nest:
        """Returns the step's result on a batch."""
        structure = BatchStructure.of_batch(batch)
        return self.on_present(structure, structure.flatten(batch))

    def on_data(self, data: ShardedIterator) -> Nest:
        """Evaluates and predicts on batches alone."""
        raise NotImplementedError

    def on_present(self, structure: BatchStructure, present: tuple[Any, ...]) -> Any:
        """Returns the step's result on the values that a batch holds."""

        @_as_written
        def run(*present: Any) -> Any:
            batch = structure.pack(present)
            return self._model.distribute_strategy.run(self._step, args=(batch,))

        if self._model.run_eagerly:
            return run(*present)
        if structure.key not in self._traced:
            signature = [of_any_rows(spec) for spec in structure.present]
            self._traced[structure.key] = _tf.function(run, signature)
        return self._traced[structure.key](*present)


class LocalSteps(LocalFunction):
    """Runs the train steps of a model, and mixes models where a round of them ends."""

    def __init__(
        self, model: keras.Model, step: Callable[[Nest], Nest], mix: Mix
    ) -> None:
        super().__init__(model, step)
        self._mix = mix
        self._logs: dict[str, Any] = {}

    def on_data(self, data: ShardedIterator) -> Logs:
        """Runs the next steps on this worker's rows, and returns the last one's logs."""
        ran = False
        # The rest of these steps if a worker has come back in their middle.
        size = self._model.steps_per_execution
        for _ in range(size - self._mix.steps % size):
            with naming_unequal_data(self._model.distribute_strategy.num_workers):
                count, total, present = next(data.values)
            if int(total) == 0:
                break
            # A last batch may have fewer rows than there are workers. Who has none takes
            # no step, and mixes when the others do.
            if int(count) > 0:
                self._logs = self.on_present(data.structure, present)
                self._mix.has_trained = True
            self._mix.step_done()
            ran = True
        if not ran:
            raise StopIteration
        return self._logs

    def on_batch(self, batch: Nest) -> Nest:
        """Runs one step on a batch of this worker's own, and returns its logs."""
        logs = super().on_batch(batch)
        self._mix.step_done(of_epoch=False)
        return logs
