"""All-reduces, on logical devices: a process has to make these before it does anything."""

import pytest


@pytest.mark.parametrize("cases", ["all_reduce_cases.py", "all_reduce_fit_cases.py"])
def test_on_nine_devices(run_cases, cases):
    run_cases(cases)
