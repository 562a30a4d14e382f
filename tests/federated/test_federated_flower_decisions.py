"""What Flower's strategy decides without Flower: arrays, numbers of clients, refusals."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from tfdist.research.federated import flower
from tfdist.research.federated.flower.array_layout import ArrayLayout
from tfdist.research.federated.flower.client_numbers import ClientNumbers

from ..support.raising import raises

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_apps_of_the_example():
    page = (ROOT / "docs" / "federated.md").read_text()
    (block,) = re.findall(r"```python\n(import experiment\n.*?)```", page, re.S)
    example = ROOT / "examples" / "federated_flower" / "flower_app.py"
    assert example.read_text().endswith(block)


def test_arrays_are_a_vector_and_back_in_any_order():
    arrays = {
        "kernel": np.arange(6, dtype="float32").reshape(2, 3),
        "scale": np.float32(7).reshape(()),
        "empty": np.zeros((0, 4), "float32"),
        "bias": np.array([8, 9], "float32"),
    }
    layout = ArrayLayout(arrays)
    vector = layout.vector(dict(reversed(arrays.items())))
    assert vector.dtype == np.float32
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    back = layout.arrays(vector)
    assert list(back) == list(arrays)
    for name, each in arrays.items():
        assert back[name].shape == each.shape
        np.testing.assert_array_equal(back[name], each)


def test_one_double_makes_a_vector_of_doubles():
    layout = ArrayLayout({"a": np.ones(1, "float32"), "b": np.full(1, 1e-300)})
    assert layout.dtype == np.float64
    assert layout.vector({"a": np.ones(1), "b": np.full(1, 1e-300)})[1] == 1e-300


def test_arrays_of_another_model_are_refused():
    layout = ArrayLayout({"a": np.ones((2, 3), "float32")})
    for other in ({"a": np.ones((3, 2))}, {"b": np.ones((2, 3))}, {}):
        with raises(ValueError, "{'a': (2, 3)}", "received"):
            layout.vector(other)
    with raises(ValueError, "{'seed': 'uint32'}"):
        ArrayLayout({"a": np.ones(1), "seed": np.ones(1, "uint32")})
    with raises(ValueError, "received none"):
        ArrayLayout({})


def test_nodes_are_the_clients_that_they_say(caplog):
    numbers = ClientNumbers(3)
    assert numbers.unknown([70, 50]) == [50, 70]
    numbers.add(70, 0)
    numbers.add(50, 2)
    assert numbers.unknown([50, 60, 70]) == [60]
    assert numbers.connected([50, 60, 70]) == {0: 70, 2: 50}
    assert numbers.connected([70]) == {0: 70}
    for stranger in (-1, 3):
        with pytest.raises(
            ValueError, match=f"0 to 2; node 60 says that it is {stranger}"
        ):
            numbers.add(60, stranger)
    assert not caplog.messages


def test_a_client_that_starts_again_is_asked_at_its_new_node(caplog):
    numbers = ClientNumbers(3)
    numbers.add(70, 1)
    numbers.add(40, 1)
    assert "another node says that it is client 1" in caplog.text
    assert numbers.connected([40, 70]) == {1: 40}
    assert numbers.connected([70]) == {1: 70}


def test_without_flower_the_error_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name != "flwr" and find(name) or None
    )
    for name in flower.__all__:
        monkeypatch.delitem(vars(flower), name, raising=False)
        with raises(ImportError, "flwr>=1.41"):
            getattr(flower, name)
    with raises(AttributeError, "'Strategy'"):
        _ = flower.Strategy
