"""What each test finds as if it were the first one, over the servers that tests share."""

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fresh_environment() -> Iterator[None]:
    """Undo what a test does to the environment and the working directory."""
    environment, directory = _environment(), os.getcwd()
    yield
    # Only what differs: threads of TensorFlow that read the environment meanwhile can crash.
    now = _environment()
    for name in now.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if now.get(name) != value:
            os.environ[name] = value
    os.chdir(directory)


def _environment() -> dict[str, str]:
    """The environment, but for what pytest itself changes within each test."""
    return {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}


@pytest.fixture(autouse=True)
def fresh_keras_state() -> Iterator[None]:
    """Forget names, seeds and settings that a test left in Keras's global state."""
    yield
    if keras := sys.modules.get("keras"):
        keras.utils.clear_session(free_memory=False)
    # `keras.utils.set_random_seed` sets this one too, and `clear_session` leaves it.
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.random.set_seed(None)


@pytest.fixture(autouse=True)
def fresh_placement(request: pytest.FixtureRequest) -> None:
    """Place variables as on empty ps: small models use both, whatever was placed before."""
    if "strategy" not in request.fixturenames:
        return
    import tfdist

    strategy = request.getfixturevalue("strategy")
    if isinstance(strategy, tfdist.ParameterServerStrategy):
        strategy.extended.placed.placement = tfdist.BestFit()
