"""What each test finds as if it were the first one, over the servers that tests share."""

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def fresh_environment() -> Iterator[None]:
    """Undo what a test does to the environment and the working directory."""
    environment, directory = dict(os.environ), os.getcwd()
    yield
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    os.chdir(directory)


@pytest.fixture(autouse=True)
def fresh_keras_state() -> Iterator[None]:
    """Forget names, seeds and settings that a test left in Keras's global state."""
    yield
    if keras := sys.modules.get("keras"):
        keras.utils.clear_session(free_memory=False)


@pytest.fixture(autouse=True)
def fresh_placement(request: pytest.FixtureRequest) -> None:
    """Place variables as on empty ps: small models use both, whatever was placed before."""
    if "strategy" not in request.fixturenames:
        return
    import tfdist

    strategy = request.getfixturevalue("strategy")
    if isinstance(strategy, tfdist.ParameterServerStrategy):
        strategy.extended._placement = tfdist.BestFit()
