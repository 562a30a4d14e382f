"""Plain values and changed attributes, through JSON and back."""

import collections
import enum
import io
import json

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy

from tfdist.checkpoint.attributes import Changes
from tfdist.checkpoint.plain import (
    NotPlainError,
    UnkeptError,
    from_json,
    to_json,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
HASHABLE = st.recursive(
    SCALARS | st.text(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner),
    max_leaves=5,
)
FACTORIES = st.sampled_from([None, int, float, list, dict, set])
VALUES = st.recursive(
    SCALARS | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.dictionaries(st.just("__kind__"), inner)
        | st.sets(HASHABLE)
        | st.frozensets(HASHABLE)
        | st.builds(collections.deque, st.lists(inner), st.none() | st.integers(0, 3))
        | st.dictionaries(HASHABLE, inner).map(collections.OrderedDict)
        | st.dictionaries(HASHABLE, st.integers()).map(collections.Counter)
        | st.builds(
            collections.defaultdict, FACTORIES, st.dictionaries(HASHABLE, inner)
        )
    ),
    max_leaves=10,
)


def shown(value):
    """Returns what tells a value from equal ones: 1 from True, or a deque's bound."""
    kind = type(value)
    more = getattr(value, "maxlen", getattr(value, "default_factory", None))
    if isinstance(value, set | frozenset):
        value = sorted(map(repr, map(shown, value)))
    elif isinstance(value, dict):
        value = [(shown(key), shown(each)) for key, each in value.items()]
    elif isinstance(value, list | tuple | collections.deque):
        value = list(map(shown, value))
    return kind, more, repr(value)


@pytest.mark.not_in_gate
@given(VALUES)
def test_values_come_back_as_they_were(value):
    text = json.dumps(to_json(value, {}))
    back = from_json(json.loads(text), {})
    assert back == value
    assert shown(back) == shown(value)


SHAPES = numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
ELEMENTS = st.sampled_from(
    [None, b"x\0", "y", 2**70, np.float32(1), (1,), [np.ones(2)]]
)
EXTENSIONS = [
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn),
    *(ml_dtypes.int4, ml_dtypes.uint4),
]
ARRAYS = st.one_of(
    numpy.arrays(numpy.scalar_dtypes() | numpy.array_dtypes(), SHAPES),
    numpy.arrays(object, SHAPES, elements=ELEMENTS),
    numpy.arrays("u1", SHAPES, elements=st.integers(0, 15)).flatmap(
        lambda array: st.sampled_from(EXTENSIONS).map(array.astype)
    ),
)
DTYPES_OF_WEIGHTS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("complex64", "complex128"),
]
SCALARS_OF_NUMPY = (
    ARRAYS.filter(lambda array: array.size and not array.dtype.names)
    .map(lambda array: array.ravel()[0])
    .filter(lambda scalar: not isinstance(scalar, np.ndarray))
)


def through_files(value):
    arrays, file = {}, io.BytesIO()
    coded = json.dumps(to_json(value, arrays))
    np.savez(file, **arrays)
    file.seek(0)
    with np.load(file, allow_pickle=False) as read:
        return from_json(json.loads(coded), dict(read))


def flat(value):
    return value if isinstance(value, list) else value.ravel()


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, np.ndarray | np.generic):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
    if isinstance(one, list) or getattr(one, "dtype", None) == np.dtype("O"):
        for each, same in zip(flat(one), flat(other), strict=True):
            assert_same(each, same)
    elif isinstance(one, np.ndarray | np.generic):
        assert one.tobytes() == other.tobytes()
    else:
        assert one == other


@given(st.lists(ARRAYS | ARRAYS.map(np.transpose) | SCALARS_OF_NUMPY, max_size=3))
def test_arrays_and_scalars_keep_their_dtypes_and_shapes(values):
    for one, other in zip(through_files(values), values, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("dtype", DTYPES_OF_WEIGHTS)
def test_weights_come_back(dtype):
    """Scalars too: `set_weights` asks each for its shape."""

    def ones(shape, dtype):
        return tf.cast(tf.ones(shape), dtype)

    layer = keras.layers.Layer()
    for shape in [(), (2,), (2, 0)]:
        layer.add_weight(shape, ones, dtype, trainable=False)
    weights = layer.get_weights()
    back = through_files(weights)
    for one, other in zip(back, weights, strict=True):
        assert_same(one, other)
    layer.set_weights(back)


class OfUser(np.ndarray):
    pass


class ListOfUser(list):
    pass


@pytest.mark.parametrize(
    "value",
    [
        *(object(), len, {len}, enum.IntEnum("E", "A").A, np.zeros(2).view(OfUser)),
        *(collections.defaultdict(lambda: 0), ListOfUser([1])),
        *(np.ma.array([1]), np.array([len]), np.array([(len,)], [("a", object)])),
        *(np.array([(1,)], [("a", ml_dtypes.bfloat16)]), np.zeros(1, [("a", "i4")])[0]),
    ],
)
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(NotPlainError) as caught:
        to_json([value], {})
    kinds = np.ndarray | np.generic | collections.defaultdict | ListOfUser
    assert isinstance(caught.value, UnkeptError) == isinstance(value, kinds)


def test_weights_of_an_older_checkpoint_have_shapes():
    coded = [{"__kind__": "array", "value": "0"}, 0, 0.5]
    weights = from_json(coded, {"0": np.zeros(2)})
    assert [each.shape for each in weights] == [(2,), (), ()]
    assert from_json([1, 0.5], {}) == [1, 0.5]


class Counter:
    def __init__(self):
        self.patience = 5
        self.wait = 0
        self.data, self.halves = np.ones(3), np.zeros(2, ml_dtypes.bfloat16)
        self.rate = np.float32(0.5)
        self.filled = {"rows": np.zeros((2, 2), "float32")[:, :1]}
        self.best = None
        self.model = 1
        self.function = len


def test_changed_attributes_alone_are_the_state(caplog):
    counter = Counter()
    changes = Changes([counter], ignored=["model"])
    counter.wait, counter.model, counter.function = 3, 2, max
    counter.best = [np.zeros(2)]
    counter.filled["rows"][1] = 3.0
    counter.new = ("a", np.float32(0.5))
    counter.lost = [np.ma.array([1])]
    counter.counts = collections.defaultdict(lambda: 0)
    counter.last = collections.deque([1, 2], 2)
    arrays = {}
    changes.state({})
    [(name, changed)] = changes.state(arrays)
    told = "do not keep the attribute Counter.lost, which has an array MaskedArray"
    assert caplog.text.count(told) == 1
    assert "attribute Counter.counts, which has a defaultdict whose" in caplog.text
    assert name == "Counter"
    assert set(changed) == {"wait", "best", "new", "filled", "last"}
    assert from_json(changed["new"], arrays) == ("a", 0.5)
    np.testing.assert_array_equal(from_json(changed["best"], arrays)[0], np.zeros(2))
