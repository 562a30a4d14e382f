"""`tfdist.plan`: plans a model from the function that builds it."""

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

    Needs no cluster, and allocates no variable: variables are measured, not created.

        plan = tfdist.plan(build_model, num_ps=4)
        print(plan)
        strategy = tfdist.ParameterServerStrategy(placement=tfdist.planning.Planned(plan))
        with strategy.scope():
            model = build_model()

    Memory includes the optimizer's slots. Traffic is what one step of one worker moves:
    every variable and its gradient; for an embedding in `lookups`, only those rows.

    Args:
        build_model: The function that is called in the scope; returns a model, built
            and compiled.
        num_ps: The number of ps.
        optimizer: The optimizer of a model that is not compiled.
        batch: The shapes of a batch, `(x, y)`, if they do not follow from the model.
        lookups: The number of rows of an embedding that a step looks up, by a pattern
            of its path, for example `{"*/embeddings": 256}`.
        balance: The quantity to balance: `"memory"`, with the fewest splits;
            `"traffic"`; or `"both"`, which splits every large embedding over all ps.
        target: The imbalance to reach; variables are split only as far as it needs.

    Raises:
        ValueError: If an argument is out of range.
        UnknownSizesError: If the sizes of the model's variables cannot be determined.
        TypeError: If `build_model` is not a function, or does not return a model.
    """
    check_arguments(num_ps, balance, target)
    weights = weights_of(build_model, optimizer=optimizer, batch=batch, lookups=lookups)
    return plan_variables(weights, num_ps, balance=balance, target=target)
