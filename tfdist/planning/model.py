"""`tfdist.plan`: a plan for a model, from the function that builds it."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from tfdist.planning.arguments import TARGET, check_arguments
from tfdist.planning.plan import Plan
from tfdist.planning.planner import plan_variables
from tfdist.planning.sizes import weights_of


def plan(
    build_model: Callable[[], keras.Model],
    num_ps: int,
    *,
    optimizer: keras.optimizers.Optimizer | str | None = None,
    batch: Any = None,
    lookups: Mapping[str, int] | None = None,
    balance: str = "memory",
    target: float = TARGET,
) -> Plan:
    """Plans where a model's variables live, so that no ps holds more than its share.

    No cluster is needed, and no memory: variables are measured, not created.

        plan = tfdist.plan(build_model, num_ps=4)
        print(plan)
        strategy = tfdist.ParameterServerStrategy(placement=tfdist.Planned(plan))
        with strategy.scope():
            model = build_model()

    Memory counts the optimizer's slots. Traffic is what one step of one worker moves: a
    variable whole, and its gradient back; of an embedding in `lookups` the rows alone.

    Args:
        build_model: Returns a model, built and compiled, as it is called in the scope.
        num_ps: The number of ps.
        optimizer: For a model that is not compiled.
        batch: The shapes of a batch, `(x, y)`, where they do not follow from the
            model.
        lookups: The rows that a step looks up in an embedding, by a pattern of its
            path, for example `{"*/embeddings": 256}`.
        balance: What reaches the target: `"memory"`, with the fewest splits;
            `"traffic"`; or `"both"`, for which every large embedding is split over all
            ps.
        target: The imbalance that is good enough; variables are split only as far as
            it needs.

    Raises:
        ValueError: If an argument is out of its range.
        UnknownSizesError: If the model's variables cannot be told.
        TypeError: If `build_model` is no function, or does not return a model.
    """
    check_arguments(num_ps, balance, target)
    weights = weights_of(build_model, optimizer=optimizer, batch=batch, lookups=lookups)
    return plan_variables(weights, num_ps, balance=balance, target=target)
