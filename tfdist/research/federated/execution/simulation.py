"""`Simulation`: the rounds of a federation whose clients are all here."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfdist._support.types import Nest
from tfdist.research.federated import server_file
from tfdist.research.federated.aggregation import WeightedMean
from tfdist.research.federated.averaging import FederatedAveraging
from tfdist.research.federated.client_behavior import ClientBehavior
from tfdist.research.federated.client_update import ClientUpdate, merged
from tfdist.research.federated.execution import round_logs
from tfdist.research.federated.execution.client_data import client_data
from tfdist.research.federated.execution.client_training import ClientTraining
from tfdist.research.federated.execution.parcel import (
    NOTHING,
    Parcel,
    Trained,
    packed,
    unpacked,
)
from tfdist.research.federated.execution.workers import OneWorker, Workers
from tfdist.research.federated.server import Server

_log = logging.getLogger("tfdist")


class Simulation:
    """Runs federated averaging over simulated clients, even thousands of them.

    The model gives the weights to begin with, and has the server's weights after each
    round. Clients train with the loss and the optimizer of its `compile`, by
    `ClientTraining`: all those of a round in one graph call. The same seed gives the same
    run.

    On a cluster of workers, each trains its share of a round's clients, and the first one is
    the server. Every worker runs the same program. A worker that is lost takes its clients of
    that round with it; if the server is lost, the others end with an error.

    Cost: each worker holds the model and the data; a round moves the updates of a worker's
    clients to the server (their mean alone, where the rule allows it) and the model back.

    Args:
        model: A Keras model that is built and compiled.
        averaging: The algorithm.
        examples: `(x, y)` or `(x, y, sample_weight)`, arrays of all clients' examples, or a
            function that returns those of a client, or a batched `tf.data.Dataset` of them,
            whose examples count and not its batches.
        split: Row numbers per client, as `tfdist.research.federated.iid` and its siblings return
            them; for a function, the number of clients.
        behavior: The clients' dropout, delays and attacks.
        workers: `tfdist.research.federated.Workers()` on a cluster; None: this process alone.
        keep_contributions: Whether the server keeps what each client has added, so that
            `leave` can take it out.
        checkpoint_dir: The directory to which the server's state is written after each
            round, and from which `run` of a restarted program reads it.

    Attributes:
        averaging: The algorithm.
        server: The server: its weights, its rounds.
        training: The training of clients here; `training.steps` counts their steps.

    Raises:
        TypeError: If an argument has another type.
        ValueError: If clients cannot train the model, or arguments do not fit together.
    """

    def __init__(
        self,
        model: keras.Model,
        averaging: FederatedAveraging,
        examples: Nest,
        split: Any,
        *,
        behavior: ClientBehavior | None = None,
        workers: Workers | None = None,
        keep_contributions: bool = False,
        checkpoint_dir: str | None = None,
    ) -> None:
        self._model, self.averaging = model, averaging
        self._data = client_data(examples, split)
        self._behavior = behavior or ClientBehavior()
        self._behavior.check(self._data.num_clients)
        self._workers: Any = workers or OneWorker()
        self._directory = checkpoint_dir
        self.training = ClientTraining(model, averaging)
        self.server = Server(
            averaging,
            self.training.vector.read(),
            self._data.num_clients,
            keep_contributions,
        )
        self._keeps_contributions = keep_contributions
        self._has_begun = False
        if empty := self._data.num_clients - len(self._data.with_data):
            _log.warning("%d clients have no examples, and are never asked", empty)

    def run(
        self,
        rounds: int,
        *,
        validation_data: Nest = None,
        validation_freq: int = 1,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        verbose: int = 0,
    ) -> keras.callbacks.History:
        """Runs rounds until there were that many, those before a restart included.

        Callbacks see rounds as epochs, without batches: TensorBoard, CSVLogger,
        ModelCheckpoint, EarlyStopping and LearningRateScheduler work. On a cluster they run
        on the server alone. Clients train at the rate that the model's optimizer has then.

        Args:
            rounds: How many in all, 1 or more.
            validation_data: As `model.evaluate` takes it: `(x, y)` or a dataset.
            validation_freq: After how many rounds to evaluate; always after the last.
            callbacks: Keras callbacks.
            verbose: 0 is silent, 1 prints a line per round.

        Returns:
            The logs per round: `clients` asked, `answered`, `seconds` (simulated),
            `bytes_down` and `bytes_up` (of models and updates, between the server and
            clients), `counts` (1 if the round changed the model) and, where evaluated,
            `val_loss` and the metrics.

        Raises:
            ValueError: If `rounds` is below 1, or the checkpoint is of another experiment.
            RuntimeError: If the worker that is the server is lost.
        """
        if rounds < 1 or validation_freq < 1:
            raise ValueError(
                "rounds and validation_freq are 1 or more; received "
                f"{rounds=}, {validation_freq=}"
            )
        history = keras.callbacks.History()
        logged = round_logs.callback_list(self._model, [history, *callbacks], rounds)

        def evaluated(index: int) -> round_logs.Logs:
            is_due = (index + 1) % validation_freq == 0 or index + 1 == rounds
            if validation_data is None or not is_due:
                return {}
            return round_logs.evaluated(self._model, validation_data)

        self._run(rounds, logged, evaluated, verbose)
        return history

    def _run(
        self,
        rounds: int,
        logged: keras.callbacks.CallbackList,
        evaluated: Callable[[int], round_logs.Logs],
        verbose: int,
    ) -> None:
        model, is_server = self._model, self._workers.is_server

        def begin() -> None:
            logged.on_train_begin()
            if self.server.round_index < rounds:
                logged.on_epoch_begin(self.server.round_index)

        self._begin(begin)
        while self.server.round_index < rounds and not model.stop_training:
            index = self.server.round_index
            logs = self._round()
            if is_server:
                logs |= evaluated(index)
                logged.on_epoch_end(index, logs)
                self._save()
                if verbose:
                    print(round_logs.line(logs, rounds, index), flush=True)
                # Before the others hear of it: a callback may set the rate of the round.
                if index + 1 < rounds and not model.stop_training:
                    logged.on_epoch_begin(index + 1)
            self._receive()
        if is_server:
            logged.on_train_end()

    def leave(self, client: int, take_out: bool = False) -> None:
        """Excludes a client from rounds to come.

        Args:
            client: Its number.
            take_out: Whether to subtract what it has added: see `Server.leave`.

        Raises:
            ValueError: If there is no such client, or contributions are not kept.
        """
        self._begin()
        if self._workers.is_server:
            self.server.leave(client, take_out)
            self._save()
        # Every `from_server` follows one.
        self._workers.to_server(NOTHING)
        self._receive()

    def _round(self) -> round_logs.Logs:
        """Runs a round up to the next model, and returns its logs to the server."""
        index, averaging = self.server.round_index, self.averaging
        selected = self.server.select(self._data.with_data)
        answers = self._behavior.answers(index, selected, averaging.deadline)
        parcels = self._workers.to_server(
            packed(self._trained(self._workers.share(answers.answered), index))
        )
        if not self._workers.is_server:
            return {}
        # Clients of a worker that was lost meanwhile are not among them.
        arrived = sum(parcel.header["answered"] for parcel in parcels)
        counts = self.server.finish_round(self._sent(unpacked(parcels)))
        self.training.vector.write(self.server.weights)
        logs = {
            "clients": len(selected),
            "answered": arrived,
            "seconds": answers.seconds,
            "bytes_down": len(selected) * self.server.weights.nbytes,
            "bytes_up": arrived * self.server.weights.nbytes,
            "counts": counts,
        }
        return {name: float(value) for name, value in logs.items()}

    def _trained(self, clients: Sequence[int], index: int) -> Trained:
        """Trains clients here: the updates of those whose training did not diverge."""
        if not clients:
            return [], 0
        data = self._data.of(clients)
        updates = []
        for update in self.training.updates(
            self.server.weights, data.examples, data.rows, index
        ):
            try:
                self.server.check(update)
                updates.append(update)
            except ValueError as error:
                _log.warning("round %d goes on without an update: %s", index + 1, error)
        answered = len(updates)
        if self._is_mean_enough and answered > 1:
            updates = [merged(updates)]
        return updates, answered

    def _sent(self, updates: list[ClientUpdate]) -> list[ClientUpdate]:
        """Returns the updates that clients send, attackers included."""
        if self._behavior.attack is None or not updates:
            return updates
        changes = np.stack([each.change for each in updates])
        sent = self._behavior.sent(changes, [each.client for each in updates])
        return [
            each._replace(change=change)
            for each, change in zip(updates, sent, strict=True)
        ]

    @property
    def _is_mean_enough(self) -> bool:
        """True if a worker may send one mean of its clients' updates instead."""
        return (
            self._workers.num_workers > 1
            and self.averaging.rule == WeightedMean()
            and self.averaging.min_clients == 1
            and not self.averaging.privacy
            and not (self._behavior.attack or self._keeps_contributions)
        )

    def _begin(self, then: Callable[[], None] = lambda: None) -> None:
        """Continues from the checkpoint, if there is one, with the server's model on all.

        The server calls `then` before the others hear of it.
        """
        if not self._has_begun and self._directory and self._workers.is_server:
            state = server_file.load(self._directory, self._about)
            if state is not None:
                self.server.restore(state)
                self.training.vector.write(self.server.weights)
        self._has_begun = True
        self._model.stop_training = False
        if self._workers.is_server:
            then()
        self._workers.to_server(NOTHING)
        self._receive()

    def _save(self) -> None:
        if self._directory:
            server_file.save(self._directory, self._about, self.server.state())

    def _receive(self) -> None:
        """Sends the server's state to all workers."""
        server, model = self.server, self._model
        header = {
            "round": server.round_index,
            "left": sorted(server.left),
            "stop": bool(model.stop_training),
            "learning_rate": self.training.learning_rate,
        }
        found = self._workers.from_server(Parcel(header, server.weights))
        server.weights = found.array
        server.round_index = found.header["round"]
        server.left = set(found.header["left"])
        model.stop_training = found.header["stop"]
        self.training.learning_rate = found.header["learning_rate"]
        self.training.vector.write(server.weights)

    @property
    def _about(self) -> str:
        keeps = ", contributions kept" if self._keeps_contributions else ""
        return (
            f"{self.averaging}, {self.server.num_clients} clients, "
            f"{len(self.server.weights)} parameters{keeps}"
        )
