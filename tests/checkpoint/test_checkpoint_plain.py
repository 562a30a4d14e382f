"""Plain values and changed attributes, through JSON and back."""

import enum
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.plain import NotPlainError, from_json, to_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.dictionaries(st.just("__kind__"), inner)
    ),
    max_leaves=10,
)


@given(VALUES)
def test_values_come_back_as_they_were(value):
    text = json.dumps(to_json(value, {}))
    back = from_json(json.loads(text), {})
    assert back == value
    assert repr(back) == repr(value)


def test_arrays_come_back_from_beside():
    arrays = {}
    weights = [np.ones((2, 3), "float32"), np.zeros(1, "int64")]
    coded = json.loads(json.dumps(to_json({"best": weights}, arrays)))
    back = from_json(coded, arrays)["best"]
    for one, other in zip(back, weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "value", [object(), len, {1, 2}, b"x", enum.IntEnum("E", "A").A, np.array(["a"])]
)
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(NotPlainError):
        to_json([value], {})


class Counter:
    def __init__(self):
        self.patience = 5
        self.wait = 0
        self.data = np.ones(3)
        self.best = None
        self.model = 1
        self.function = len


def test_changed_attributes_alone_are_the_state():
    counter = Counter()
    changes = Changes([counter], ignored=["model"])
    counter.wait, counter.model, counter.function = 3, 2, max
    counter.best = [np.zeros(2)]
    counter.new = ("a", np.float32(0.5))
    arrays = {}
    [(name, changed)] = changes.state(arrays)
    assert name == "Counter"
    assert set(changed) == {"wait", "best", "new"}
    assert from_json(changed["new"], arrays) == ("a", 0.5)
    np.testing.assert_array_equal(from_json(changed["best"], arrays)[0], np.zeros(2))
