"""`server_app`: the rounds of a federation as a Flower `ServerApp`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from tfdist._support.types import Nest
from tfdist.local_update.model_vector import ModelVector
from tfdist.research.federated.averaging import FederatedAveraging
from tfdist.research.federated.execution import checks, round_logs
from tfdist.research.federated.flower.array_layout import layout_of
from tfdist.research.federated.flower.averaging_strategy import (
    AveragingStrategy,
    arrays_of,
    record_of,
)


def server_app(
    build_model: Callable[[], keras.Model],
    averaging: FederatedAveraging,
    num_clients: int,
    rounds: int,
    *,
    validation_data: Callable[[], Any] | None = None,
    callbacks: Callable[[], Sequence[keras.callbacks.Callback]] = tuple,
    start_with: int | None = None,
    connect_timeout: float = 600.0,
) -> ServerApp:
    """Returns the app that runs the rounds, as `Simulation.run` does.

    Functions are called on the server alone: the file that calls this one is imported by
    clients too. `num-server-rounds` and `start-with` in the configuration of Flower's run
    replace `rounds` and `start_with`.

    Args:
        build_model: Returns a Keras model, built and compiled, with the weights to begin
            with. It has the server's weights after each round.
        averaging: The algorithm.
        num_clients: All that belong to the federation: 0 to num_clients - 1.
        rounds: How many, 1 or more.
        validation_data: Returns what `model.evaluate` takes: `(x, y)` or a dataset.
        callbacks: Returns Keras callbacks, for which a round is an epoch. Where one stops
            the training, the rounds that are left ask nobody.
        start_with: See `AveragingStrategy`.
        connect_timeout: See `AveragingStrategy`.

    Raises:
        ValueError: If a number is out of range.
    """
    if rounds < 1:
        raise ValueError(f"rounds is 1 or more; received {rounds}")
    make_strategy = functools.partial(
        AveragingStrategy, averaging, num_clients, connect_timeout=connect_timeout
    )
    make_strategy(start_with=start_with)  # Checks it.
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        model, config = build_model(), context.run_config
        checks.check_model(model)
        data = validation_data() if validation_data else None
        strategy = make_strategy(start_with=config.get("start-with", start_with))
        number = config.get("num-server-rounds", rounds)
        _run(grid, model, strategy, number, data, callbacks())

    return app


def _run(
    grid: Grid,
    model: keras.Model,
    strategy: AveragingStrategy,
    rounds: int,
    data: Nest,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    vector = ModelVector(model)
    layout = layout_of(model, vector)
    logged = round_logs.callback_list(model, callbacks, rounds)

    def end_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Shows the model of a round to callbacks; round 0 is before the first one."""
        if strategy.stopped or not server_round:
            return None
        vector.write(layout.vector(arrays_of(arrays)))
        logs = {} if data is None else round_logs.evaluated(model, data)
        logged.on_epoch_end(server_round - 1, logs)
        strategy.stopped = bool(model.stop_training)
        return MetricRecord(logs) if logs else None

    model.stop_training = False
    logged.on_train_begin()
    strategy.start(
        grid,
        # In the order of the vector, for which a simulation draws its noise.
        record_of(layout.arrays(vector.read())),
        rounds,
        timeout=strategy.averaging.deadline,  # None waits for all, as Flower's grid does.
        evaluate_fn=end_round,
    )
    logged.on_train_end()
