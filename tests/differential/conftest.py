"""Trains a program in one process and under a cluster's parameter servers."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        needs = {"alike", "alike_when_changed"}.intersection(item.fixturenames)
        if Path(__file__).parent in item.path.parents and needs:
            item.add_marker("cluster")


@pytest.fixture(scope="session")
def alike(strategy) -> Callable[..., list[str]]:
    """Returns where a program differs from itself in one process; [] is as it should be.

    One function is on its way at a time, so that the steps have an order: that of one
    process.
    """
    import tfdist

    return comparing(strategy, lambda program: tfdist.ExchangeEvery(program.exchange))


@pytest.fixture(scope="session")
def alike_when_changed(strategy) -> Callable[..., list[str]]:
    """The same where workers keep weights during a function, and send them after it."""
    import tfdist

    submit = strategy.in_flight.submit

    def submit_and_collect(*args, **kwargs):
        output = submit(*args, **kwargs)
        strategy.in_flight.join_functions()
        strategy.in_flight.collect()
        return output

    return comparing(
        strategy, lambda _: tfdist.WhenChanged(2.0, max_age=3), submit_and_collect
    )


def comparing(strategy, exchange_of, submit=None) -> Callable[..., list[str]]:
    """Returns what compares a program under an exchange with itself in one process."""
    import tensorflow as tf

    from tfdist.parameter_server.fit.pace import Pace

    from .compare import differences
    from .run import run

    plain = tf.distribute.get_strategy()

    def compare(program) -> list[str]:
        def steps(pace, finished):
            pace.chosen |= {1, program.stride}
            return program.stride

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strategy, "exchange", exchange_of(program))
            patch.setattr(strategy.in_flight, "limit", 1)
            if submit is not None:
                patch.setattr(strategy.in_flight, "submit", submit)
            # The stride depends on the time that steps take.
            patch.setattr(Pace, "steps", steps)
            ours = run(program, strategy)
            strategy.in_flight.join()
        return differences(ours, run(in_one_process(program), plain))

    def in_one_process(program):
        # At an end that it does not know, Keras begins one more step: it adds to
        # `iterations`, and to what else does not depend on a batch.
        if program.data == "unknown_length":
            return dataclasses.replace(program, data="dataset")
        return program

    return compare
