"""How `fit` trains in unison: the driver of `SynchronousStrategy`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tfdist.keras import building
from tfdist.keras.batch_structure import BatchStructure
from tfdist.keras.driver import DefaultDriver
from tfdist.keras.functions import PredictFunction, StepFunction
from tfdist.keras.scope import outside_of_scope
from tfdist.liveness.peers import explained
from tfdist.synchronous.fit import agreement, callbacks, refusals
from tfdist.synchronous.fit.input import ShardedData
from tfdist.synchronous.fit.steps import ReplicaPredictions, ReplicaSteps


class SynchronousDriver(DefaultDriver):
    """Has all replicas take every step together, each on its rows of the batch.

    Args:
        strategy: The `SynchronousStrategy`.
    """

    in_unison = True

    def train_function(self, model: Any) -> Callable[[Iterator[Any]], Any]:
        """Checks the model, and returns what runs its train steps on all replicas.

        Raises:
            SynchronousTrainingError: If a part of a batch is not enough for a layer.
        """
        refusals.check_model(model)
        step = building.step_of(model, building.TRAIN)
        return StepFunction(model, ReplicaSteps(model, step))

    def test_function(self, model: Any) -> Callable[[Iterator[Any]], Any]:
        """Returns what runs test steps on all replicas."""
        step = building.step_of(model, building.TEST)
        return StepFunction(model, ReplicaSteps(model, step))

    def predict_function(self, model: Any) -> Callable[[list[Any]], Any]:
        """Returns what predicts on all replicas."""
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
            # Without a graph, what the step computes is known from a rehearsal alone.
            always=bool(model.run_eagerly),
        )

    @contextlib.contextmanager
    def running(
        self, model: Any, method: str, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Has all workers begin `fit` alike, and names a worker that is lost."""
        strategy, extended = self.strategy, self.strategy.extended
        with explained(extended.lost_peers), extended.call():
            if method == "fit":
                agreement.check_arguments(arguments, strategy)
                given = arguments.get("callbacks")
                arguments["callbacks"] = callbacks.for_worker(given, strategy)
            yield
            if method == "fit" and strategy.num_workers > 1:
                # What the chief's callbacks have written is there for all to load.
                strategy.barrier()

    @contextlib.contextmanager
    def storing(self, model: Any, operation: str) -> Iterator[bool]:
        """Has the chief alone write, and Keras read and write outside the scope.

        Keras makes an optimizer to compare with as it saves. In the scope, its
        variables would be created on all workers, and the others do not save.
        """
        is_own = getattr(model, "distribute_strategy", None) is self.strategy
        if not is_own:
            yield True
        elif operation != "load" and not self.strategy.is_chief:
            yield False
        else:
            with outside_of_scope():
                yield True
