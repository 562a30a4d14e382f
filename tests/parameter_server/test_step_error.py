"""The error message for a step that failed on a worker."""

import io
import logging
import re

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl

from tfdist._support.endings import ending_in_the_program
from tfdist.cluster.liveness.step_error import (
    CoordinatorLog,
    OfTensorFlowAlone,
    shortened,
    summary,
)
from tfdist.keras import hooks
from tfdist.parameter_server.steps.in_flight import InFlight
from tfdist.parameter_server.steps.refusals import AsynchronousTrainingError

TITLE = "Graph execution error:\n\n"
STACK = """Graph execution error:

Detected at node model/bad/Assert defined at (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap

  File "/home/me/train.py", line 12, in call

  File "/venv/lib/python3.11/site-packages/keras/src/layers/layer.py", line 9, in f

"""
REASON = "assertion failed: [ids are from 0 to 49; received] [50]"
SEVERAL = "2 root error(s) found.\n  (0) INVALID_ARGUMENT:   "
FUNCTIONS = "{{function_node __inference_<lambda>_3}} {{function_node f_1}} "
OF_DATA = (
    "Error in user-defined function passed to MapDataset:9 transformation with iterator: "
    "Iterator::Root::Map: "
)
OF_PYTHON = """Traceback (most recent call last):

  File "/venv/lib/python3.11/site-packages/tensorflow/python/ops/script_ops.py", line 2, in f
    ret = func(*args)
          ^^^^^^^^^^^

  File "/home/me/data.py", line 3, in parse
    raise ValueError("no")

"""
CANCELLED = """3 root error(s) found.
  (0) CANCELLED:  Run
  (1) INVALID_ARGUMENT:  """
END = """
\t [[{{node model/bad/Assert}}]]
Additional GRPC error information from remote target /job:worker/replica:0/task:1:
:UNKNOWN:Error received from peer {grpc_message:" assertion"} [Op:__inference_run_7]"""
SHORT = f"a step failed on worker 1: {REASON}\n  made in /home/me/train.py, line 12"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (STACK + REASON + END, SHORT),
        (STACK + STACK.split("\n\n", 1)[1] + REASON + END, SHORT),
        (
            f"{TITLE}Detected at node bad:\n<stack traces unavailable>\n{REASON}{END}",
            f"a step failed on worker 1: {REASON}",
        ),
        (STACK + CANCELLED + REASON + END, SHORT),
        (STACK + SEVERAL + REASON + END + "\n  (1) INVALID_ARGUMENT: it", SHORT),
        (
            STACK.replace("/home/me", "/x/lib/python3") + REASON,
            "a step failed: " + REASON,
        ),
        (FUNCTIONS + REASON + END, f"a step failed on worker 1: {REASON}"),
        (
            SEVERAL
            + FUNCTIONS
            + REASON
            + "\n\t [[{{node a}}]]\n  (1) OUT_OF_RANGE: it",
            f"a step failed: {REASON}",
        ),
        (
            f"{FUNCTIONS}{OF_DATA}{OF_DATA}ValueError: no\n{OF_PYTHON}ValueError: no\n\n{END}",
            "a step failed on worker 1: ValueError: no\nTraceback (most recent call last):\n"
            '  File "/home/me/data.py", line 3, in parse\n    raise ValueError("no")\n\n'
            "ValueError: no\n  made in /home/me/data.py, line 3",
        ),
        ("Worker 1 is down", "Worker 1 is down"),
        (STACK, STACK),
        ("", ""),
    ],
)
def test_summary(text, short):
    assert summary(text) == short


def test_an_operation_that_a_server_does_not_know_has_a_remedy():
    message = (
        "Op type not registered 'Split>Whitespace' in binary running on h1. Make sure "
        "the Op and Kernel are registered in the binary running in this process."
    )
    short = shortened(tf.errors.NotFoundError(None, None, message)).message
    assert "does not know the operation Split>Whitespace" in short
    assert "--import=MODULE" in short
    assert "TFDIST_IMPORTS=MODULE" in short


def test_the_coordinators_log_is_shortened():
    def filtered(module, message):
        record = logging.LogRecord(
            "tensorflow", 40, f"/{module}.py", 1, message, (), None
        )
        return record.getMessage() if CoordinatorLog().filter(record) else None

    long = "worker 1 failed: " + STACK + REASON + END
    assert filtered("cluster_coordinator", long) == "worker 1 failed: " + SHORT
    assert filtered("cluster_coordinator", "worker 1 is back") == "worker 1 is back"
    lost = "Worker 1 failed with UnavailableError():connection refused"
    assert filtered("cluster_coordinator", lost + END) == lost
    cancelled = "Remote function on worker 1 failed with CancelledError():no more.\n"
    assert filtered("cluster_coordinator", cancelled + "This is ignored") is None
    # The program gets this one itself.
    raised = "task:1 encountered the following error when processing closure: "
    assert filtered("cluster_coordinator", raised + STACK + REASON + END) is None
    assert filtered("another", long) == long


def test_a_record_is_printed_once():
    """Whether or not the root logger prints to the same stream."""
    ours, other = io.StringIO(), io.StringIO()
    root, logger = logging.getLogger(), logging.getLogger("tensorflow")
    handler = logging.StreamHandler(ours)
    handler.addFilter(OfTensorFlowAlone(handler))

    def printed_beside(stream, level=logging.NOTSET):
        beside = logging.StreamHandler(stream)
        beside.setLevel(level)
        root.addHandler(beside)
        ours.truncate(0)
        try:
            logger.warning("hello")
        finally:
            root.removeHandler(beside)
        return ours.getvalue().count("hello")

    logger.addHandler(handler)
    try:
        assert printed_beside(ours) == 1
        assert printed_beside(other) == 1
        assert printed_beside(ours, logging.ERROR) == 1
        handler.filters.clear()
        assert printed_beside(ours) == 2
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("error", "has_driver", "is_whole"),
    [
        (AsynchronousTrainingError("no"), True, False),
        (tf.errors.InvalidArgumentError(None, None, "no"), True, False),
        (AsynchronousTrainingError("no"), False, False),
        (ValueError("the user's own"), True, True),
    ],
)
def test_an_error_that_explains_itself_shows_the_program(
    monkeypatch, error, has_driver, is_whole
):
    monkeypatch.setattr(hooks, "_strategy_of", lambda model: None)
    monkeypatch.setattr(hooks, "driver_of", lambda _: object() if has_driver else None)

    def user(values):
        raise error

    def fit(self):
        # Within the files of a library.
        tf.nest.map_structure(user, [1])

    with pytest.raises(type(error)) as caught:
        ending_in_the_program(fit, hooks._is_explained)(None)
    names = [each.name for each in caught.traceback[1:]]
    assert names[:2] + names[-1:] == ["called", "fit", "user"]
    assert (len(names) > 3) == is_whole


class FailingCoordinator:
    error = tf.errors.InvalidArgumentError(None, None, STACK + REASON + END)

    def __init__(self):
        self.output = RemoteValueImpl(None, None)
        self.output._set_error(tf.errors.CancelledError(None, None, "cancelled"))

    def schedule(self, function, args):
        return self.output

    def join(self):
        raise self.error


class Refusing(FailingCoordinator):
    def schedule(self, function, args):
        raise self.error


@pytest.mark.parametrize(
    ("coordinator", "before", "call"),
    [
        (FailingCoordinator, InFlight.submit, lambda steps, _: steps.join()),
        (
            FailingCoordinator,
            InFlight.submit,
            lambda steps, _: steps.submit(None, None),
        ),
        # What another function failed with.
        (FailingCoordinator, InFlight.schedule, InFlight.fetch),
        (Refusing, None, lambda steps, _: steps.schedule(None, None)),
    ],
    ids=["join", "submit_another", "fetch", "schedule"],
)
def test_waiting_for_steps_raises_the_short_error(coordinator, before, call):
    in_flight = InFlight(coordinator(), limit=2)
    output = before and before(in_flight, None, None)
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        call(in_flight, output)
    assert raised.value.message == SHORT
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("reason", ["Incompatible shapes: [3,4] vs. [8,4]", "no"])
def test_shapes_that_do_not_match_may_be_those_of_the_last_batch(reason):
    class OfShapes(FailingCoordinator):
        error = tf.errors.InvalidArgumentError(None, None, STACK + reason + END)

    in_flight = InFlight(OfShapes(), limit=2)
    in_flight.submit(None, None)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=re.escape(reason)
    ) as raised:
        in_flight.join()
    assert ("the last one may have fewer" in raised.value.message) == (reason != "no")
