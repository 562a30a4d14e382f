"""Under a cluster's parameter servers, a dozen programs train as in one process."""

import pytest

from .fixed import FIXED

pytestmark = pytest.mark.in_gate


@pytest.mark.parametrize("name", FIXED)
def test_trains_as_in_one_process(alike, name):
    assert alike(FIXED[name]) == []
