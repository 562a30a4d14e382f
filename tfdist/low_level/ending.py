"""The end of a cluster of every-task programs: the ps exit when training is done.

`server.join()` of TensorFlow never returns (tensorflow#25858). Here each task that
trains puts its name into a queue on every ps when it is done. A ps reads its queue
until all tasks have reported, or until the chief has and the rest take too long: a
worker that was killed for good reports nothing.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

import tf_config
from tfdist.cluster.startup import StartupTimeoutError, wait_for

_log = logging.getLogger("tfdist")

PATIENCE_SECONDS = 60.0
REPORT_SECONDS = 10.0

_QUEUE = "tfdist_done"
_NO_ANSWER = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)

# A task that has put its name into the queue is still waiting for the response.
_LINGER_SECONDS = 1.0


def serve_until_done(
    server: tf.distribute.Server, patience: float = PATIENCE_SECONDS
) -> list[str]:
    """Runs a ps until every task that trains has called `report_done`.

    Args:
        server: The server of this ps.
        patience: How long the others may take once the chief is done, in seconds. The
            chief is the job `chief` or `master`; without either, `worker:0`.

    Returns:
        The tasks that did not report in time, such as `"worker:2"`.

    Raises:
        ValueError: If the server is not a ps.
    """
    definition = server.server_def
    if definition.job_name != "ps":
        raise ValueError(
            "serve_until_done is for a ps; this server is "
            f"{definition.job_name}:{definition.task_index}, which calls report_done"
        )
    name = f"ps:{definition.task_index}"
    others = trainers(definition)
    with _session(server, definition.task_index, timeout=0) as (queue, session):
        # Once: in TensorFlow 1, each call adds an operation to the graph.
        name_taken = queue.dequeue()

        def next_name(timeout: float | None) -> str | None:
            # To TensorFlow 0 means no timeout, so a time below 0.5 ms is rounded up.
            milliseconds = 0 if timeout is None else max(1, round(timeout * 1000))
            options = tf.compat.v1.RunOptions(timeout_in_ms=milliseconds)
            try:
                done = session.run(name_taken, options=options).decode()
            except tf.errors.DeadlineExceededError:
                return None
            _log.info("%s: %s is done", name, done)
            return done

        missing = wait_for_all(others, next_name, patience)
    if missing:
        _log.warning(
            "%s exits without %s, which did not report within %g s after the chief",
            name,
            ", ".join(missing),
            patience,
        )
    time.sleep(_LINGER_SECONDS)
    return missing


def report_done(server: tf.distribute.Server, timeout: float = REPORT_SECONDS) -> None:
    """Reports to every ps that this task no longer needs it.

    Call it after the training session is closed, and not after a failure: the ps must
    still be there when the task is restarted.

    Args:
        server: The server of this task.
        timeout: How long to try per ps, in seconds. A ps that does not respond is
            skipped with a warning: it has exited, or must be stopped manually.
    """
    definition = server.server_def
    name = f"{definition.job_name}:{definition.task_index}"
    for index, address in enumerate(addresses(definition).get("ps", [])):
        ps = tf_config.Task("ps", index)
        try:
            # A session would wait for the ps forever.
            wait_for(
                {ps: address}, timeout, "It has exited, or must be stopped manually."
            )
            with _session(server, index, timeout) as (queue, session):
                session.run(queue.enqueue(name))
        except (StartupTimeoutError, *_NO_ANSWER) as error:
            _log.warning("%s cannot tell %s that it is done: %s", name, ps, error)


def wait_for_all(
    names: Sequence[str],
    next_name: Callable[[float | None], str | None],
    patience: float,
) -> list[str]:
    """Waits for each name once, but at most `patience` seconds after the first one.

    `next_name` returns the next name that arrives, or None after that many seconds. Returns
    the names that did not arrive.
    """
    chief, missing = names[0], list(names)
    deadline: float | None = None
    while missing:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        name = next_name(left)
        # A task that was restarted may report twice.
        if name in missing:
            missing.remove(name)
        if name == chief and deadline is None:
            deadline = time.monotonic() + patience
    return missing


def trainers(definition: tf.train.ServerDef) -> list[str]:
    """Returns the names of the tasks that train, the chief's first."""
    hosts = addresses(definition)
    return [
        f"{job}:{index}"
        for job in ("chief", "master", "worker")
        for index in range(len(hosts.get(job, [])))
    ]


def addresses(definition: tf.train.ServerDef) -> dict[str, list[str]]:
    """Returns the addresses of the tasks of each job, by task index."""
    return {
        job.name: [job.tasks[index] for index in sorted(job.tasks)]
        for job in definition.cluster.job
    }


@contextmanager
def _session(
    server: tf.distribute.Server, ps: int, timeout: float
) -> Iterator[tuple[tf.queue.FIFOQueue, tf.compat.v1.Session]]:
    """Opens a session that uses one ps only, and the queue on it."""
    definition = server.server_def
    own = f"/job:{definition.job_name}/task:{definition.task_index}"
    config = tf.compat.v1.ConfigProto(
        # TensorFlow waits for every task that is not filtered out.
        device_filters=[own, f"/job:ps/task:{ps}"],
        operation_timeout_in_ms=round(timeout * 1000),
    )
    with tf.Graph().as_default(), tf.device(f"/job:ps/task:{ps}"):
        # The shared name makes the graphs of all tasks use the same queue.
        queue = tf.queue.FIFOQueue(-1, [tf.string], [()], shared_name=_QUEUE)
        with tf.compat.v1.Session(server.target, config=config) as session:
            yield queue, session
