"""Transport of several tensors as one vector.

The sender flattens and concatenates the tensors, and the receiver splits the vector. If
their dtypes differ, its elements are the 32-bit words of their bits: tensors of 16 bits come
last, together, two elements to a word. If the shape of a tensor is known only when the step
runs, the vector begins with it.

Words are declared as int32, never as float32: as that, a small integer is a denormal
number, which TensorFlow takes for 0 where it folds constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.parameter_server.step_graph.definitions import Builder

_WORD = _SHAPE = tf.int32


@dataclass(frozen=True)
class Part:
    """A tensor that travels with others.

    Attributes:
        reference: The reference to it on the sender.
        dtype: Its dtype.
        shape: Its shape; the rank is known.
    """

    reference: str
    dtype: tf.DType
    shape: tf.TensorShape

    @property
    def is_static(self) -> bool:
        """True if the shape is known now."""
        return bool(self.shape.is_fully_defined())

    def elements(self, dtype: tf.DType) -> int:
        """Returns how many elements of the vector's dtype one of its own takes."""
        return self.dtype.size // dtype.size


def fits(dtype: tf.DType, shape: tf.TensorShape) -> bool:
    """Returns True if a tensor can travel with others: whole words, and a known rank.

    16-bit tensors need a static shape.
    """
    is_number = dtype.is_floating or dtype.is_integer
    if not is_number or dtype.is_quantized or shape.rank is None:
        return False
    is_half = dtype == tf.bfloat16 and shape.is_fully_defined()
    return bool(is_half or dtype.size in (4, 8))


def send(parts: Sequence[Part], builder: Builder, signals: Sequence[str] = ()) -> str:
    """Adds nodes that make a vector of the parts; returns its reference."""
    dtype = _dtype_of(parts)
    whole, halves = _by_size(parts, dtype)
    if halves:
        parts = [*whole, _in_words(halves, builder)]
    shapes, bodies = [], []
    for part in parts:
        tensor = part.reference
        if not part.is_static:
            shapes.append(builder.add("Shape", [tensor], T=part.dtype, out_type=_SHAPE))
        if part.dtype != dtype:
            tensor = builder.add("Bitcast", [tensor], T=part.dtype, type=dtype)
        bodies.append(_reshaped(tensor, builder.constant([-1]), dtype, builder))
    vector = builder.concatenate([*shapes, *bodies], dtype)
    if not signals:
        return vector
    # TensorFlow's constant folding counts what an operation waits for as an input of a
    # concatenation, and leaves a graph that does not run.
    waits = [f"^{each}" for each in signals]
    return builder.add("Identity", [vector, *waits], T=dtype)


def receive(vector: str, parts: Sequence[Part], builder: Builder) -> list[str]:
    """Adds nodes that split a vector, and returns the references to the parts."""
    dtype = _dtype_of(parts)
    whole, halves = _by_size(parts, dtype)
    if halves:
        together = Part("", _WORD, tf.TensorShape([_words(halves)]))
        *received, last = receive(vector, [*whole, together], builder)
        of_halves = _from_words(last, halves, builder)
        found = {
            part.reference: tensor
            for part, tensor in zip(
                [*whole, *halves], [*received, *of_halves], strict=True
            )
        }
        return [found[part.reference] for part in parts]
    shapes = _shapes(vector, parts, builder)
    header = sum(part.shape.rank for part in parts if not part.is_static)
    if header:
        sizes = [builder.constant([header])]
        sizes += [
            _size(part, shape, builder)
            for part, shape in zip(parts, shapes, strict=True)
        ]
        all_sizes = builder.concatenate(sizes, _SHAPE)
    else:
        all_sizes = builder.constant([_static_size(part, dtype) for part in parts])
    first = 1 if header else 0
    split = builder.add(
        "SplitV",
        [vector, all_sizes, builder.constant(0)],
        T=dtype,
        Tlen=_SHAPE,
        num_split=first + len(parts),
    )
    return [
        _restored(
            f"{split}:{first + i}" if first + i else split, dtype, part, shape, builder
        )
        for i, (part, shape) in enumerate(zip(parts, shapes, strict=True))
    ]


def _dtype_of(parts: Sequence[Part]) -> tf.DType:
    """Returns the dtype of the vector: the parts' own, if they have the same."""
    dtypes = {part.dtype for part in parts}
    dtypes |= {_SHAPE for part in parts if not part.is_static}
    return dtypes.pop() if len(dtypes) == 1 else _WORD


def _by_size(parts: Sequence[Part], dtype: tf.DType) -> tuple[list[Part], list[Part]]:
    """Returns the parts of whole words, and the 16-bit parts among them."""
    if dtype.size < _WORD.size:
        return list(parts), []
    halves = [part for part in parts if part.dtype.size < _WORD.size]
    return [part for part in parts if part.dtype.size >= _WORD.size], halves


def _words(halves: Sequence[Part]) -> int:
    return -(-sum(_static_size(part, part.dtype) for part in halves) // 2)


def _in_words(halves: Sequence[Part], builder: Builder) -> Part:
    """Adds nodes that make words of 16-bit tensors."""
    dtype, words = halves[0].dtype, _words(halves)
    vector = builder.constant([-1])
    flat = [_reshaped(each.reference, vector, dtype, builder) for each in halves]
    # A last half that fills the last word.
    if sum(_static_size(part, dtype) for part in halves) % 2:
        flat.append(builder.constant([0], dtype))
    joined = builder.concatenate(flat, dtype)
    pairs = _reshaped(joined, builder.constant([words, 2]), dtype, builder)
    sent = builder.add("Bitcast", [pairs], T=dtype, type=_WORD)
    return Part(sent, _WORD, tf.TensorShape([words]))


def _from_words(vector: str, halves: Sequence[Part], builder: Builder) -> list[str]:
    """Adds nodes that make 16-bit tensors of words, and returns references to them."""
    dtype = halves[0].dtype
    pairs = builder.add("Bitcast", [vector], T=_WORD, type=dtype)
    flat = _reshaped(pairs, builder.constant([-1]), dtype, builder)
    sizes = [_static_size(part, dtype) for part in halves]
    if sum(sizes) % 2:
        sizes.append(1)
    split = builder.add(
        "SplitV",
        [flat, builder.constant(sizes), builder.constant(0)],
        T=dtype,
        Tlen=_SHAPE,
        num_split=len(sizes),
    )
    return [
        _reshaped(
            f"{split}:{i}" if i else split,
            builder.constant(part.shape.as_list()),
            dtype,
            builder,
        )
        for i, part in enumerate(halves)
    ]


def _shapes(vector: str, parts: Sequence[Part], builder: Builder) -> list[str]:
    """Returns references to the shapes of the parts; most of them are constants."""
    shapes = []
    start = 0
    for part in parts:
        if part.is_static:
            shapes.append(builder.constant(part.shape.as_list()))
            continue
        begin = builder.constant([start])
        size = builder.constant([part.shape.rank])
        shapes.append(
            builder.add("Slice", [vector, begin, size], T=_SHAPE, Index=tf.int32)
        )
        start += part.shape.rank
    return shapes


def _size(part: Part, shape: str, builder: Builder) -> str:
    """Returns a reference to the number of words of a part, a vector of one element."""
    if part.is_static:
        return builder.constant([_static_size(part, _WORD)])
    # A scalar's shape is always known, so this shape has at least one element.
    words = builder.constant([part.elements(_WORD)])
    factors = builder.concatenate([shape, words], _SHAPE)
    axis = builder.constant(0)
    size = builder.add("Prod", [factors, axis], T=_SHAPE, Tidx=tf.int32)
    return _reshaped(size, builder.constant([1]), _SHAPE, builder)


def _static_size(part: Part, dtype: tf.DType) -> int:
    elements = part.shape.num_elements()
    assert elements is not None
    return elements * part.elements(dtype)


def _restored(
    vector: str, dtype: tf.DType, part: Part, shape: str, builder: Builder
) -> str:
    words = part.elements(dtype)
    if words > 1:
        shape = builder.concatenate([shape, builder.constant([words])], _SHAPE)
    tensor = _reshaped(vector, shape, dtype, builder)
    if part.dtype == dtype:
        return tensor
    return builder.add("Bitcast", [tensor], T=dtype, type=part.dtype)


def _reshaped(tensor: str, shape: str, dtype: tf.DType, builder: Builder) -> str:
    return builder.add("Reshape", [tensor, shape], T=dtype, Tshape=_SHAPE)
