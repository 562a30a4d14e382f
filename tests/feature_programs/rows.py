"""Rows of a table of features: see features/test_feature_table.py."""

import pytest

PARAMS = [
    pytest.param(1, id="one", marks=pytest.mark.feature("In a list", ring="-")),
]


@pytest.mark.feature("The same everywhere", "no", "for a reason")
def test_same():
    pass


@pytest.mark.feature("Not so", "no", "it races", rounds="yes", synchronous="yes")
def test_synchronous():
    pass


@pytest.mark.feature(
    "Each its own", synchronous="yes", multi_worker=("approximate", "as the page says")
)
def test_own():
    pass


@pytest.mark.parameter_server
@pytest.mark.feature("Of ps")
def test_of_ps():
    pass


@pytest.mark.parameter_server
@pytest.mark.steps_write
@pytest.mark.feature("What steps write")
def test_steps_write():
    pass


@pytest.mark.parametrize("number", PARAMS)
def test_list(number):
    pass


@pytest.mark.feature("Nothing told", ring=("no",))
def test_untold():
    pass
