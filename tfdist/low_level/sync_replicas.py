"""Synchronous steps in graph mode, with backup workers for slow ones."""

import contextlib
import secrets
import threading
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.consistency.synchronous import Synchronous
from tfdist.low_level.accumulator import Accumulator
from tfdist.low_level.replica_round import Round

_STOP = -1  # in place of the index of a replica
_LARGEST_NONCE = 2**62


class SyncReplicasOptimizer(tf.compat.v1.train.Optimizer):
    """Averages the gradients of the fastest replicas and applies them in one step.

    It replaces `tf.compat.v1.train.SyncReplicasOptimizer`, which counts several
    gradients of a fast replica in place of a slow one's, and whose chief takes two
    minutes to exit.

    Each replica adds its gradients to accumulators on the devices of the variables,
    notifies the chief, and waits. When `replicas_to_aggregate` replicas have done so, a
    thread of the chief updates the variables and releases these replicas into the next
    step. The gradient of a later replica is stale: it is dropped, and the replica
    continues at once. Replicas beyond `replicas_to_aggregate` are backup workers
    (J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016, arXiv:1604.00981,
    section 4).

    Cost: a step moves one gradient and one copy of each variable per replica, as
    without it, plus a few messages of a few bytes per replica to the ps of the global
    step.

    Args:
        optimizer: An optimizer of `tf.compat.v1.train`, which applies the average.
        replicas_to_aggregate: The number of replicas whose gradients make a step.
        total_num_replicas: The number of replicas, including the chief.
        replica: The index of this replica.

    Raises:
        ValueError: If one of the numbers is out of range.
    """

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int,
        replica: int,
    ) -> None:
        if not 1 <= replicas_to_aggregate <= total_num_replicas:
            raise ValueError(
                "replicas_to_aggregate must be from 1 to the number of replicas, "
                f"{total_num_replicas}; received {replicas_to_aggregate}"
            )
        if not 0 <= replica < total_num_replicas:
            raise ValueError(
                f"replica must be an index from 0 to {total_num_replicas - 1}; received "
                f"{replica}"
            )
        super().__init__(use_locking=False, name="SyncReplicas")
        self._optimizer = optimizer
        self._policy = Synchronous(
            backup_workers=total_num_replicas - replicas_to_aggregate,
            replicas_to_aggregate=replicas_to_aggregate,
        )
        self._total = total_num_replicas
        self._replica = replica
        self._aggregator: _Aggregator | None = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients of this replica, as the optimizer computes them."""
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Returns an op that adds this replica's gradients and awaits the next step.

        Raises:
            ValueError: If there is no global step, or no gradient.
        """
        pairs = [(grad, var) for grad, var in grads_and_vars if grad is not None]
        if global_step is None or not pairs:
            raise ValueError(
                "apply_gradients needs the gradient of a variable, and a global_step "
                "to tell which gradients are stale: "
                "minimize(loss, global_step=tf.compat.v1.train.get_global_step())"
            )
        with tf.name_scope(name or "sync_replicas"):
            # A device setter would put the variable on a ps. It puts other ops on this
            # task, so the device of one is used. As a local variable, the step is not
            # restored from checkpoints.
            with tf.compat.v1.device(tf.no_op().device):
                step = tf.compat.v1.Variable(
                    tf.constant(0, tf.int64),
                    trainable=False,
                    collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                    name="step_of_replica",
                )
            accumulators = [Accumulator(grad, var) for grad, var in pairs]
            added = [
                accumulator.add(grad, step.read_value())
                for accumulator, (grad, _) in zip(accumulators, pairs, strict=True)
            ]
            with tf.compat.v1.device(global_step.device):
                aggregator = _Aggregator(self._policy, self._total)
                aggregator.build(self._optimizer, accumulators, pairs, global_step)
                with tf.control_dependencies(added):
                    next_step = aggregator.wait(self._replica, step.read_value())
                aggregator.build_join(self._replica, step)
            self._aggregator = aggregator
            return step.assign(next_step).op

    def make_session_run_hook(
        self, is_chief: bool
    ) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook that each replica's `MonitoredTrainingSession` needs.

        Args:
            is_chief: Whether this replica is the chief, which updates the variables.

        Raises:
            ValueError: If `apply_gradients` has not been called.
        """
        if self._aggregator is None:
            raise ValueError(
                "make the hook after minimize() or apply_gradients(), which build the "
                "operations that it runs"
            )
        return _Hook(self._aggregator, is_chief)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a slot of the optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the optimizer's slots."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[tf.Variable]:
        """Returns the variables of the optimizer."""
        return self._optimizer.variables()


class _Aggregator:
    """Makes a step of the gradients that have arrived.

    The global step is authoritative; a release only wakes a replica up. A replica that
    joins waits for the answer to its nonce: earlier answers were for the process that
    it replaces. A surplus wake-up, which a replica gets if it is computing while the
    chief is restarted, makes it add two gradients in one step; this uses the wake-up.
    """

    def __init__(self, policy: Synchronous, total: int) -> None:
        self._policy = policy
        self._arrivals = tf.queue.FIFOQueue(
            -1, [tf.int32, tf.int64], [(), ()], shared_name="sync_replicas_arrivals"
        )
        self._wake_ups = [
            tf.queue.FIFOQueue(
                -1, [tf.int64], [()], shared_name=f"sync_replicas_wake_up_{replica}"
            )
            for replica in range(total)
        ]

    def build(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        accumulators: list[Accumulator],
        pairs: list[tuple[Any, tf.Variable]],
        global_step: tf.Variable,
    ) -> None:
        """Adds the operations of the chief to the graph."""
        averages = [accumulator.take() for accumulator in accumulators]
        variables = [var for _, var in pairs]
        update = optimizer.apply_gradients(
            list(zip(averages, variables, strict=True)), global_step
        )
        self._read_step = lambda: tf.cast(global_step.read_value(), tf.int64)
        # Read after the update, which increments the global step.
        with tf.control_dependencies([update]):
            self._updated = self._read_step()
        self._step = self._read_step()
        self._averages = averages
        self._counts = [accumulator.count() for accumulator in accumulators]
        self._begin = [accumulator.begin(self._step) for accumulator in accumulators]
        self._arrived = self._arrivals.dequeue()
        self._num_arrived = self._arrivals.size()
        self._answer = tf.compat.v1.placeholder_with_default(
            tf.constant(0, tf.int64), ()
        )
        self._release = [queue.enqueue(self._answer) for queue in self._wake_ups]
        stop = (tf.constant(_STOP), tf.constant(0, tf.int64))
        self._stop = self._arrivals.enqueue(stop)
        self._close = [queue.close() for queue in self._wake_ups]

    def wait(self, replica: int, step: tf.Tensor) -> tf.Tensor:
        """Notifies the chief that a gradient was added, and waits for the next step."""
        arrival = (tf.constant(replica), step)
        with tf.control_dependencies([self._arrivals.enqueue(arrival)]):
            woken = self._wake_ups[replica].dequeue()
        with tf.control_dependencies([woken]):
            return self._read_step()

    def build_join(self, replica: int, step: tf.Variable) -> None:
        """Adds the operations with which a replica joins and sets its step."""
        self._nonce = tf.compat.v1.placeholder(tf.int64, ())
        # Steps are not negative, so a negated nonce tells a join from a gradient.
        self._arrive = self._arrivals.enqueue((tf.constant(replica), -self._nonce))
        self._woken = self._wake_ups[replica].dequeue()
        self._adopt_step = step.assign(self._read_step()).op

    def join(self, session: tf.compat.v1.Session) -> None:
        """Waits for the chief, then starts at the current step."""
        nonce = 1 + secrets.randbelow(_LARGEST_NONCE)
        session.run(self._arrive, {self._nonce: nonce})
        # Other answers were for the process that this one replaces.
        while session.run(self._woken) != nonce:
            pass
        session.run(self._adopt_step)

    def start(
        self, session: tf.compat.v1.Session, coordinator: tf.train.Coordinator
    ) -> None:
        """Starts the thread that updates the variables."""
        current = self._first_round(session)

        def run() -> None:
            with coordinator.stop_on_exception():
                try:
                    self._make_steps(session, current)
                except Exception:
                    if coordinator.should_stop():  # The session was closed.
                        return
                    # Otherwise the replicas would wait forever. Released, they get the
                    # error in their next step.
                    with contextlib.suppress(tf.errors.OpError):
                        session.run(self._release)
                    raise

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def stop(self, session: tf.compat.v1.Session) -> None:
        """Stops the thread and the steps of all replicas, including late ones."""
        session.run(self._stop)
        self._thread.join()
        session.run(self._close)

    def _first_round(self, session: tf.compat.v1.Session) -> Round:
        """Discards the gradients of a previous chief, and wakes all replicas."""
        counts = session.run(self._counts)
        # Taking an average waits for a gradient, so empty accumulators are left alone.
        left = [
            average
            for average, count in zip(self._averages, counts, strict=True)
            if count
        ]
        session.run(left)
        session.run(self._begin)
        count = session.run(self._num_arrived)
        arrived = [session.run(self._arrived) for _ in range(count)]
        session.run(self._release)
        # Joining replicas ignore the release, and wait for the answer to their nonce.
        for replica, step in arrived:
            if step < 0:
                self._welcome(session, replica, -step)
        return Round(int(session.run(self._step)), self._policy)

    def _welcome(self, session: tf.compat.v1.Session, replica: int, nonce: int) -> None:
        session.run(self._release[replica], {self._answer: nonce})

    def _make_steps(self, session: tf.compat.v1.Session, current: Round) -> None:
        while True:
            replica, step = session.run(self._arrived)
            if replica == _STOP:
                return
            if step < 0:
                current.leave(int(replica))
                self._welcome(session, replica, -step)
                continue
            released = current.arrive(int(replica), int(step))
            if current.is_complete:
                released += current.advance(int(session.run(self._updated)))
            if released:
                session.run([self._release[each] for each in released])


class _Hook(tf.compat.v1.train.SessionRunHook):
    """Starts a replica at the current step; on the chief, runs the thread too."""

    def __init__(self, aggregator: _Aggregator, is_chief: bool) -> None:
        self._aggregator = aggregator
        self._is_chief = is_chief

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Joins the other replicas at their step."""
        if self._is_chief:
            self._aggregator.start(session, coord)
        try:
            self._aggregator.join(session)
        except tf.errors.OutOfRangeError:  # The chief is done and has closed the queue.
            coord.request_stop()

    def end(self, session: tf.compat.v1.Session) -> None:
        """On the chief, ends the steps of all replicas."""
        if self._is_chief:
            self._aggregator.stop(session)
