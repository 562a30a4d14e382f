"""What the steps of several workers do to each variable: told, and warned of once."""

import logging

import pytest

from tfdist.parameter_server.exchange.report import ExchangeReport, Exchanges

SLOT, AVERAGE, COUNT = "adam/momentum", "normalization/moving_mean", "doublings"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records]


@pytest.fixture
def noted(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "tfdist")

    def note(workers: int, set_: list[str]) -> Exchanges:
        exchanges = Exchanges(workers)
        for _ in range(2):
            exchanges.note(5, ["kernel"], set_, ["table"], [SLOT])
        return exchanges

    return note


def test_a_report_says_what_becomes_of_each_variable(noted):
    report = noted(2, [SLOT, COUNT]).report(5)
    assert report == ExchangeReport(5, ("kernel",), (SLOT, COUNT), ("table",))
    assert "set, the last worker's value: adam/momentum, doublings" in str(report)
    assert "in each step: table" in str(report)


def test_what_others_may_undo_is_warned_of_once(noted, caplog):
    noted(2, [SLOT, AVERAGE, COUNT])
    (text,) = warnings(caplog)
    assert f"sets {AVERAGE}, {COUNT} to a value computed from its own" in text
    assert "variable.assign_add(number)" in text


@pytest.mark.parametrize(("workers", "set_"), [(1, [COUNT]), (2, [SLOT]), (2, [])])
def test_what_cannot_be_undone_is_not_warned_of(noted, caplog, workers, set_):
    noted(workers, set_)
    assert warnings(caplog) == []


def test_a_long_warning_is_cut(noted, caplog):
    noted(2, [f"count_{i}" for i in range(8)])
    assert "count_4 and 3 more to" in warnings(caplog)[0]


def test_before_the_first_step_there_is_nothing_to_report():
    assert str(Exchanges(2).report(5)).count("none") == 3
    assert "each step" in str(Exchanges(2).report(1))
