"""A client's round: local steps of a Keras model on its own examples, in one graph call."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist._support.types import Nest
from tfdist.local_update.model_vector import ModelVector
from tfdist.research.federated.averaging import (
    FederatedAveraging,
    LocalBatches,
    local_batches,
    random_stream,
)
from tfdist.research.federated.client_update import ClientUpdate
from tfdist.research.federated.execution import checks

_CALL_BYTES = 2**27  # The most that one call returns.


class ClientTraining:
    """Makes updates: the changes of local steps from the server's weights.

    It trains with the loss and the optimizer that the model was compiled with. Each client
    begins each round with a fresh state of the optimizer, as federated averaging has it.
    All steps of a call, whoever takes them, run in one graph call. The model's own weights
    are the workspace, and are those of the last client afterwards; the state of its own
    optimizer is not touched.

    Args:
        model: A Keras model that is built and compiled.
        averaging: The algorithm: epochs, batch size, proximal term, decay.

    Attributes:
        vector: The weights that travel: see `tfdist.local_update.model_vector`.
        steps: How many local steps were taken here, counted in the graph.

    Raises:
        ValueError: If the model is not built or compiled, or has a `train_step` of its own.
    """

    def __init__(self, model: keras.Model, averaging: FederatedAveraging) -> None:
        checks.check_model(model)
        self._model, self._averaging = model, averaging
        self.vector = ModelVector(model)
        self._optimizer = checks.fresh_optimizer(model, averaging)
        rate = self._optimizer.learning_rate
        self._fresh = [
            (each, each.numpy())
            for each in self._optimizer.variables
            # The rate is set for a round, and a client's fresh start must leave it.
            if each is not rate
        ]
        self._seeds = [
            (each, each.numpy())
            for each in model.non_trainable_variables
            if each.name == "seed_generator_state"
        ]
        self._call: Any = None
        self._kind: Any = None
        self.steps = 0

    @property
    def learning_rate(self) -> float:
        """The rate of the model's optimizer, as callbacks have set it; NaN: a schedule."""
        rate = self._model.optimizer.learning_rate
        return float(rate) if isinstance(rate, keras.Variable) else math.nan

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if not math.isnan(rate):
            self._model.optimizer.learning_rate = rate

    def update(
        self,
        weights: np.ndarray,
        examples: tuple[Nest, ...],
        round_index: int,
        client: int,
    ) -> ClientUpdate:
        """Returns a client's update.

        Args:
            weights: The server's: (parameters,).
            examples: `(x, y)` or `(x, y, sample_weight)`: arrays, or structures of arrays,
                whose first dimension is the client's examples.
            round_index: The number of rounds before this one.
            client: Its number, for the order of examples and the update.

        Raises:
            ValueError: If the client has no examples, or not those of the model.
        """
        rows = np.arange(checks.count(examples, client))
        (update,) = self.updates(weights, examples, {client: rows}, round_index)
        return update

    def updates(
        self,
        weights: np.ndarray,
        examples: tuple[Nest, ...],
        rows: Mapping[int, np.ndarray],
        round_index: int,
    ) -> list[ClientUpdate]:
        """Returns the updates of clients that share arrays.

        Args:
            weights: The server's: (parameters,).
            examples: As for `update`, of all clients.
            rows: The examples of each client, by its number.
            round_index: The number of rounds before this one.

        Raises:
            ValueError: If a client has no examples, or the weights are of another model.
        """
        if weights.shape != (sum(self.vector.sizes),):
            raise ValueError(
                f"the model has {sum(self.vector.sizes)} parameters; received weights of "
                f"shape {weights.shape}"
            )
        self._prepare(examples)
        if not math.isnan(self.learning_rate):
            self._optimizer.learning_rate = self.learning_rate * (
                self._averaging.learning_rate_factor(round_index)
            )
        most = max(1, _CALL_BYTES // max(1, weights.nbytes))
        clients = list(rows)
        found = []
        for begin in range(0, len(clients), most):
            part = {each: rows[each] for each in clients[begin : begin + most]}
            found += self._train_all(weights, examples, part, round_index)
        return found

    def _train_all(
        self,
        weights: np.ndarray,
        examples: tuple[Nest, ...],
        rows: Mapping[int, np.ndarray],
        round_index: int,
    ) -> list[ClientUpdate]:
        batches = {
            each: local_batches(self._averaging, len(mine), round_index, each)
            for each, mine in rows.items()
        }
        streams = [random_stream(self._averaging, round_index, each) for each in rows]
        order = [rows[each][batch.rows] for each, batch in batches.items()]
        changes, steps = self._call(
            weights,
            examples,
            np.concatenate(order).astype(np.int32),
            *_bounds(list(batches.values())),
            np.array(streams, np.int32),
        )
        self.steps += int(steps)
        pairs = zip(rows.items(), changes.numpy(), strict=True)
        return [ClientUpdate(each, change, len(mine)) for (each, mine), change in pairs]

    def _prepare(self, examples: tuple[Nest, ...]) -> None:
        """Makes the graph call for examples of this kind, once."""
        kind = checks.kind_of(examples)
        if self._call is not None:
            checks.check_kind(kind, self._kind)
            return
        self._kind = kind
        integers = tf.TensorSpec([None], tf.int32)
        self._call = tf.function(
            self._train_clients,
            input_signature=[
                tf.TensorSpec([None], self.vector.dtype),
                checks.specs_of(examples),
                *[integers] * 4,
            ],
            autograph=False,
        )

    def _train_clients(
        self,
        weights: tf.Tensor,
        examples: Nest,
        order: tf.Tensor,
        batch_ends: tf.Tensor,
        client_ends: tf.Tensor,
        streams: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Trains clients in turn: (clients, parameters) of changes, and the steps taken."""
        anchors = self._split(weights)
        clients = tf.size(streams)
        changes = tf.TensorArray(weights.dtype, clients, element_shape=weights.shape)

        # One client at a time, since all train the same variables.
        def train(client: tf.Tensor, steps: tf.Tensor, changes: Nest) -> Nest:
            self._begin(anchors, streams[client])

            def step(index: tf.Tensor, steps: tf.Tensor) -> Nest:
                rows = order[batch_ends[index] : batch_ends[index + 1]]
                batch = tf.nest.map_structure(
                    lambda each: tf.gather(each, rows), examples
                )
                self._step(batch, anchors)
                return index + 1, steps + 1

            _, steps = tf.while_loop(
                lambda index, _: index < client_ends[client + 1],
                step,
                [client_ends[client], steps],
                parallel_iterations=1,
            )
            return client + 1, steps, changes.write(client, self._flat() - weights)

        _, steps, changes = tf.while_loop(
            lambda client, *_: client < clients,
            train,
            [tf.constant(0), tf.constant(0), changes],
            parallel_iterations=1,
        )
        return changes.stack(), steps

    def _begin(self, anchors: Sequence[tf.Tensor], stream: tf.Tensor) -> None:
        """Sets the model to the server's, and the rest to a fresh start."""
        for variable, anchor in zip(self.vector.variables, anchors, strict=True):
            variable.assign(anchor)
        # Zeros are made when they are needed: constants would be kept in the graph.
        for variable, value in self._fresh:
            variable.assign(
                value if value.any() else tf.zeros(value.shape, value.dtype)
            )
        for variable, value in self._seeds:
            # Random numbers of its own for each client in each round.
            variable.assign(
                tf.stack([tf.constant(value[0]), tf.cast(stream, value.dtype)])
            )

    def _step(self, batch: Nest, anchors: Sequence[tf.Tensor]) -> None:
        model, optimizer = self._model, self._optimizer
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        trainable = model.trainable_variables
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = model.compute_loss(
                x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=True
            )
            loss += self._pull(anchors)
            loss = optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, [each.value for each in trainable])
        optimizer.apply(gradients, trainable)

    def _pull(self, anchors: Sequence[tf.Tensor]) -> tf.Tensor | float:
        """FedProx: mu/2 times the squared distance to the round's model."""
        if not self._averaging.proximal:
            return 0.0
        trainable = self.vector.variables[: self.vector.count_trainable]
        pairs = zip(trainable, anchors[: len(trainable)], strict=True)
        squares = [
            tf.reduce_sum(tf.cast(each.value - anchor, tf.float32) ** 2)
            for each, anchor in pairs
        ]
        return self._averaging.proximal / 2 * tf.add_n(squares)

    def _split(self, weights: tf.Tensor) -> list[tf.Tensor]:
        parts = tf.split(weights, self.vector.sizes)
        return [
            tf.cast(tf.reshape(part, variable.shape), variable.dtype)
            for part, variable in zip(parts, self.vector.variables, strict=True)
        ]

    def _flat(self) -> tf.Tensor:
        values = [
            tf.cast(tf.reshape(each.value, [-1]), self.vector.dtype)
            for each in self.vector.variables
        ]
        return tf.concat(values, axis=0)


def _bounds(batches: Sequence[LocalBatches]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of batches among all rows, and of clients among batches."""
    sizes = np.concatenate([each.sizes for each in batches])
    steps = [len(each.sizes) for each in batches]
    return (
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        np.concatenate([[0], np.cumsum(steps)]).astype(np.int32),
    )
