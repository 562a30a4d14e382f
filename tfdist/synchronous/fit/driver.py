"""The driver of `SynchronousStrategy`: how `fit` trains in lockstep."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.keras import building
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.default_driver import DefaultDriver
from tfdist.keras.functions import PredictFunction, StepFunction
from tfdist.keras.scope import outside_of_scope
from tfdist.liveness.peers import naming_lost_peers
from tfdist.synchronous.fit import agreement, callbacks, refusals
from tfdist.synchronous.fit.input import ShardedData
from tfdist.synchronous.fit.predictions import ReplicaPredictions
from tfdist.synchronous.fit.steps import ReplicaSteps


class SynchronousDriver(DefaultDriver):
    """Runs every step on all replicas together, each on its rows of the batch.

    Args:
        strategy: The `SynchronousStrategy`.
    """

    in_unison = True

    def train_function(self, model: Any) -> Callable[[Iterator[Any]], Any]:
        """Checks the model and returns the function that trains it on all replicas.

        Raises:
            SynchronousTrainingError: If a layer needs more than a part of a batch.
        """
        refusals.check_model(model)
        step = building.step_of(model, building.TRAIN)
        return StepFunction(model, ReplicaSteps(model, step))

    def test_function(self, model: Any) -> Callable[[Iterator[Any]], Any]:
        """Returns the function that runs test steps on all replicas."""
        step = building.step_of(model, building.TEST)
        return StepFunction(model, ReplicaSteps(model, step))

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """Returns the function that predicts on all replicas."""
        return PredictFunction(ReplicaPredictions(model))

    def data(self, adapter: Any) -> ShardedData:
        """Returns this worker's share of the data."""
        return ShardedData(adapter, self.strategy)

    def build(self, model: Any, element_spec: Any) -> None:
        """Builds the model and its optimizer with a copy on every replica."""
        refusals.check_optimizer(model)
        structure = BatchStructure(element_spec)
        steps = ReplicaSteps(model, building.step_of(model, building.stage()))
        building.build(
            model,
            self.strategy,
            structure.specs,
            lambda batch: steps.rehearse(structure, batch),
            # In eager mode there is no graph, so kinds come from a rehearsal.
            always=bool(model.run_eagerly),
            any_rows=True,
        )

    @contextlib.contextmanager
    def running(
        self, model: Any, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Starts `fit` from the same state on all workers, and names a lost worker."""
        strategy, extended = self.strategy, self.strategy.extended
        with naming_lost_peers(extended.lost_peers), extended.call():
            if method == "fit":
                agreement.check_arguments(arguments, strategy)
                given = arguments.get("callbacks")
                arguments["callbacks"] = callbacks.for_worker(given, strategy)
            yield
            if method == "fit" and strategy.num_workers > 1:
                # After `fit`, every worker may load what the chief's callbacks wrote.
                strategy.barrier()

    @contextlib.contextmanager
    def storing(self, model: Any, operation: str) -> Iterator[bool]:
        """Lets only the chief write, and Keras read and write outside the scope.

        While it saves, Keras creates an optimizer to compare with. In the scope, creating
        its variables is a collective, and the other workers, which do not save, would
        never join it.
        """
        is_own = getattr(model, "distribute_strategy", None) is self.strategy
        if not is_own:
            yield True
        elif operation != "load" and not self.strategy.is_chief:
            yield False
        else:
            with outside_of_scope():
                yield True
