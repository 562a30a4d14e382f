"""Under a cluster's parameter servers, a dozen programs train as in one process."""

import pytest

from .fixed import FIXED


# Beside these, shorter tests of the gate shuffle, draw, and trace functions in a step.
@pytest.mark.in_gate(
    *("partial_batch_of_a_sequence", "function_around_a_layer", "draws", "noise"),
    *("apply_in_a_condition", "two_optimizers", "masked_sequence", "between_exchanges"),
)
@pytest.mark.parametrize("name", FIXED)
def test_trains_as_in_one_process(alike, name):
    assert alike(FIXED[name]) == []
