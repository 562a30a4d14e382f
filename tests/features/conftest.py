"""What the tests of features share: proofs of where a step ran and what it wrote."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.parameter_server.step_graph.step_graph import StepGraph

sys.path.insert(0, str(Path(__file__).parent))

import graph_audit  # noqa: E402
import policies  # noqa: E402
import record_files  # noqa: E402
import replicas  # noqa: E402

SAMPLES = 64
PS = "parameter_server"
SYNCHRONOUS = ("multi_worker", "ring")
NOT_APPLICABLE = "-"
ROUNDS = "rounds"


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("cluster")
    strategy = config.getoption("strategy")
    left_out = [item for item in items if not _applies(item, strategy)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def _applies(item: pytest.Item, strategy: str) -> bool:
    if Path(__file__).parent not in item.path.parents:
        return True
    if strategy in SYNCHRONOUS and item.get_closest_marker("parameter_server"):
        return False
    if strategy == ROUNDS and item.get_closest_marker("steps_write"):
        return False
    return _works(item, strategy) != NOT_APPLICABLE


def _works(item: pytest.Item, strategy: str) -> str:
    """A strategy's cell in the row of a test: `yes`, `approximate`, `no` or `-`."""
    marker = item.get_closest_marker("feature")
    if marker is None:
        return "yes"
    told = {"synchronous": marker.args[1:], **marker.kwargs, PS: marker.args[1:]}
    status = told.get(strategy, told["synchronous" if strategy in SYNCHRONOUS else PS])
    return status if isinstance(status, str) else (*status, "yes")[0]


@pytest.fixture(scope="session")
def is_synchronous(pytestconfig: pytest.Config) -> bool:
    """Whether each replica has a copy of all variables: not on parameter servers."""
    return pytestconfig.getoption("strategy") in SYNCHRONOUS


@pytest.fixture(scope="session")
def in_rounds(pytestconfig: pytest.Config) -> bool:
    """Whether updates are made once per round, and not by the steps of workers."""
    return pytestconfig.getoption("strategy") == ROUNDS


@pytest.fixture(scope="session", autouse=True)
def strategy_comes_first(request: pytest.FixtureRequest, is_synchronous: bool) -> None:
    """Make a worker join its cluster before it first uses TensorFlow."""
    if is_synchronous:
        request.getfixturevalue("strategy")


@pytest.fixture(autouse=True)
def same_weights_in_every_run() -> None:
    """Seed the initial weights, so that losses compare between runs."""
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def nothing_stays_in_flight(request: pytest.FixtureRequest, is_synchronous: bool):
    """A step that stayed would count as late in the next `fit`."""
    yield
    if not is_synchronous and "strategy" in request.fixturenames:
        in_flight = request.getfixturevalue("strategy").in_flight
        in_flight.join()
        assert [steps for _, steps in in_flight.under_way()] == []


@pytest.fixture
def regression() -> tuple[np.ndarray, np.ndarray]:
    """64 samples of 4 numbers, and a linear function of each: 8 batches of 8."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
    return x, x @ np.float32([[1.0], [-2.0], [3.0], [0.5]])


@pytest.fixture
def classes(regression) -> tuple[np.ndarray, np.ndarray]:
    """The same samples, of three classes."""
    x, y = regression
    return x, np.digitize(y[:, 0], [-2.0, 2.0]).astype("int32")


@pytest.fixture(scope="session")
def trained_models(strategy) -> Iterator[replicas.TrainedModels]:
    """The models that synchronous strategies have trained in a test."""
    trained = replicas.TrainedModels(strategy)
    with pytest.MonkeyPatch.context() as patch:
        make = keras.Model.make_train_function
        patch.setattr(keras.Model, "make_train_function", trained.note(make))
        yield trained


@pytest.fixture
def runs_on_workers(request, strategy, is_synchronous) -> Callable[[int], Any]:
    """Assert that the workers themselves counted this many training steps.

    On parameter servers all workers together take them; others take each of them.
    """

    @contextlib.contextmanager
    def counted(steps: int) -> Iterator[None]:
        before = sum(strategy.worker_report().steps)
        yield
        assert sum(strategy.worker_report().steps) - before == steps

    @contextlib.contextmanager
    def counted_by_each(steps: int) -> Iterator[None]:
        counter = request.getfixturevalue("trained_models").counter
        before = counter.counts()
        yield
        # Where a step failed, the numbers since the session began may differ.
        assert {
            now - then for now, then in zip(counter.counts(), before, strict=True)
        } == {steps}
        if steps:
            assert counter.devices == set(strategy.extended.worker_devices)

    return counted_by_each if is_synchronous else counted


@pytest.fixture
def until_both_ran(strategy) -> Callable[[Callable[[], object]], int]:
    """Repeat training until each worker has run a step of it; return how often it ran.

    A busy machine may give all steps to one worker.
    """

    def repeat(train: Callable[[], object]) -> int:
        before = strategy.worker_report().steps
        for times in range(1, 21):
            train()
            if min(np.subtract(strategy.worker_report().steps, before)) > 0:
                return times
        raise AssertionError("one worker has run every step")

    return repeat


@pytest.fixture
def lives_on_cluster(strategy, is_synchronous) -> Callable[[keras.Model], None]:
    """Asserts that the variables are on the ps, or each has a copy on each replica."""

    def check(model: keras.Model) -> None:
        if not is_synchronous:
            assert all(v.value.device.startswith("/job:ps") for v in model.variables)
            return
        devices = set(strategy.extended.worker_devices)
        for variable in model.variables:
            assert isinstance(variable.value, tf.distribute.DistributedValues)
            assert {copy.device for copy in replicas.copies(variable)} == devices

    return check


@pytest.fixture
def call_counter(strategy, is_synchronous) -> replicas.CallCounter:
    with strategy.scope():
        return replicas.CallCounter(strategy, is_synchronous)


@pytest.fixture(scope="session")
def wait_for_chief(strategy) -> Callable[[], None]:
    """Wait for the chief, the only task that writes files."""
    return getattr(strategy, "barrier", lambda: None)


@pytest.fixture(scope="session")
def make_directory(tmp_path_factory) -> Callable[[str], Path]:
    """Make a directory that all workers share."""
    shared = os.environ.get("FEATURES_DIRECTORY")

    def make(name: str) -> Path:
        if shared is None:
            return tmp_path_factory.mktemp(name)
        path = Path(shared, "files", name)
        path.mkdir(parents=True, exist_ok=True)
        return path

    return make


@pytest.fixture
def tmp_path(request, make_directory) -> Path:
    return make_directory(re.sub(r"\W+", "-", request.node.name)[:60])


@pytest.fixture
def own_directory(strategy, tmp_path) -> Path:
    """A directory for the files of this worker alone."""
    index = getattr(strategy.extended, "worker_index", 0)
    path = tmp_path / str(index)
    path.mkdir()
    return path


@pytest.fixture
def trains(strategy, is_synchronous, runs_on_workers) -> Callable[..., Any]:
    """Trains a model on the workers, and returns it and its logs.

    Where all replicas step together, asserts that one process gets the same logs and
    weights, unless the model draws, or computes, something else on each replica.
    """

    def train(build, *data, steps, exact=True, rtol=2e-4, **fit):
        fit = {"batch_size": 8, "shuffle": False, "verbose": 0, **fit}
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = build()
        with runs_on_workers(steps):
            history = policies.own_logs(model.fit(*data, **fit).history)
        if is_synchronous and exact:
            keras.utils.set_random_seed(0)
            plain = build()
            expected = plain.fit(*data, **fit).history
            assert history.keys() == expected.keys()
            for name in history:
                np.testing.assert_allclose(
                    history[name], expected[name], rtol=rtol, err_msg=name
                )
            assert_close(model.get_weights(), plain.get_weights(), rtol)
        return model, history

    return train


@pytest.fixture
def fits(trains):
    """Asserts that the workers train a model, and that its loss falls."""

    def fit(build, *data, epochs=6, **options):
        steps = epochs * SAMPLES // 8
        model, history = trains(build, *data, epochs=epochs, steps=steps, **options)
        assert history["loss"][-1] < history["loss"][0]
        return model, history

    return fit


@pytest.fixture
def is_refused(request) -> bool:
    """Whether the strategy rejects the feature, according to its row."""
    return _works(request.node, request.config.getoption("strategy")) == "no"


def assert_close(weights: Any, expected: Any, rtol: float) -> None:
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol / 10)


@dataclass
class Sent:
    """What was sent to the workers during a test.

    Attributes:
        functions: Each once.
        problems: What of their graphs can lose an update.
    """

    functions: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@pytest.fixture
def sent(request, strategy, monkeypatch) -> Sent:
    marks = request.node.iter_markers("sets_own_value")
    allowed = [mark.args[0] for mark in marks]
    under_key = policies.UNDER_KEY.get(request.config.getoption("strategy"), [])
    new_rows = [mark.args[0] for mark in request.node.iter_markers("sets_new_rows")]
    sent = Sent()
    schedule = strategy.coordinator.schedule

    def spy(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function not in sent.functions:
            sent.functions.append(function)
            if hasattr(function, "graph"):
                sent.problems += graph_audit.problems(
                    function, allowed, under_key, new_rows
                )
        return schedule(function, *args, **kwargs)

    monkeypatch.setattr(strategy.coordinator, "schedule", spy)
    return sent


@pytest.fixture(autouse=True)
def no_step_can_lose_an_update(request, is_synchronous) -> Iterator[None]:
    """Audit the graph of each step that is sent to a worker."""
    if "strategy" not in request.fixturenames or is_synchronous:
        yield
        return
    sent = request.getfixturevalue("sent")
    yield
    assert sent.problems == []


@pytest.fixture(autouse=True)
def copies_stay_equal(request, is_synchronous) -> Iterator[None]:
    """Compare the copies of each variable bit by bit after each test.

    Those of other processes are compared by who runs the tests there: see in_step.py.
    """
    if not is_synchronous:
        yield
        return
    trained = request.getfixturevalue("trained_models")
    trained.forget()
    yield
    variables = trained.variables()
    replicas.assert_copies_are_equal(variables)
    request.node.user_properties.append(("variables", replicas.digest(variables)))


@pytest.fixture(autouse=True)
def no_pipeline_is_known(request: pytest.FixtureRequest, is_synchronous: bool) -> None:
    """The driver follows a few pipelines, and says once what it does not follow."""
    if not is_synchronous and "strategy" in request.fixturenames:
        readers = request.getfixturevalue("strategy").fit_driver._lease_readers
        readers._of_sources.clear()
        readers._of_ordinary_ones.clear()
        readers._told.clear()


@pytest.fixture
def step_graphs(monkeypatch) -> list[Any]:
    """The step graphs that are traced in a test."""
    found = []
    constructor = StepGraph.__init__

    def init(self, *args, **kwargs):
        constructor(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(StepGraph, "__init__", init)
    return found


@pytest.fixture(scope="session")
def record_paths(make_directory) -> list[str]:
    """Three TFRecord files on a path that all tasks see: see record_files.py."""
    directory = make_directory("record_files")
    found = [str(directory / f"{i}.tfrecord") for i in range(3)]
    for path, numbers in zip(
        found, np.split(np.arange(record_files.SAMPLES), 3), strict=True
    ):
        record_files.write(path, numbers)
    return found


@pytest.fixture
def dealt(strategy, monkeypatch):
    """The rows that the chief has sent with the steps, in their order."""
    rows = []
    submit = strategy.in_flight.submit

    def note(function, argument, *args, **options):
        rows.extend(argument.numpy())
        return submit(function, argument, *args, **options)

    monkeypatch.setattr(strategy.in_flight, "submit", note)
    return rows
