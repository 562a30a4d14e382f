"""How several tensors travel as one: a vector of 32-bit words.

The sender flattens and concatenates the tensors, and the receiver splits the vector. Its
words are declared as float32, and are the bits of the tensors, whatever their dtype. If
the shape of a tensor is known only when the step runs, the vector begins with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.parameter_server.step_graph.definitions import Builder

_WORD = tf.float32
_SHAPE = tf.int32


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
    def words(self) -> int:
        """The number of words of one element."""
        return self.dtype.size // _WORD.size

    @property
    def is_static(self) -> bool:
        """Whether the shape is known now."""
        return bool(self.shape.is_fully_defined())


def fits(dtype: tf.DType, shape: tf.TensorShape) -> bool:
    """Whether a tensor can travel with others: whole words, and a known rank."""
    is_number = dtype.is_floating or dtype.is_integer
    return bool(
        is_number
        and not dtype.is_quantized
        and dtype.size in (4, 8)
        and shape.rank is not None
    )


def send(parts: Sequence[Part], builder: Builder) -> str:
    """Adds what makes one vector of the parts, and returns the reference to it."""
    shapes, bodies = [], []
    for part in parts:
        words = part.reference
        if not part.is_static:
            shape = builder.add("Shape", [words], T=part.dtype, out_type=_SHAPE)
            shapes.append(builder.add("Bitcast", [shape], T=_SHAPE, type=_WORD))
        if part.dtype != _WORD:
            words = builder.add("Bitcast", [words], T=part.dtype, type=_WORD)
        bodies.append(_reshaped(words, builder.constant([-1]), _WORD, builder))
    return builder.concatenate([*shapes, *bodies], _WORD)


def receive(vector: str, parts: Sequence[Part], builder: Builder) -> list[str]:
    """Adds what splits a vector, and returns the references to the parts."""
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
        all_sizes = builder.constant([_static_size(part) for part in parts])
    first = 1 if header else 0
    split = builder.add(
        "SplitV",
        [vector, all_sizes, builder.constant(0)],
        T=_WORD,
        Tlen=_SHAPE,
        num_split=first + len(parts),
    )
    return [
        _restored(f"{split}:{first + i}" if first + i else split, part, shape, builder)
        for i, (part, shape) in enumerate(zip(parts, shapes, strict=True))
    ]


def _shapes(vector: str, parts: Sequence[Part], builder: Builder) -> list[str]:
    """Returns references to the shapes of the parts, most of which are constants."""
    shapes = []
    start = 0
    for part in parts:
        if part.is_static:
            shapes.append(builder.constant(part.shape.as_list()))
            continue
        begin = builder.constant([start])
        size = builder.constant([part.shape.rank])
        words = builder.add("Slice", [vector, begin, size], T=_WORD, Index=tf.int32)
        shapes.append(builder.add("Bitcast", [words], T=_WORD, type=_SHAPE))
        start += part.shape.rank
    return shapes


def _size(part: Part, shape: str, builder: Builder) -> str:
    """Returns a reference to the number of words of a part, a vector of one element."""
    if part.is_static:
        return builder.constant([_static_size(part)])
    # A scalar's shape is always known, so this shape has at least one element.
    factors = builder.concatenate([shape, builder.constant([part.words])], _SHAPE)
    axis = builder.constant(0)
    size = builder.add("Prod", [factors, axis], T=_SHAPE, Tidx=tf.int32)
    return _reshaped(size, builder.constant([1]), _SHAPE, builder)


def _static_size(part: Part) -> int:
    elements = part.shape.num_elements()
    assert elements is not None
    return elements * part.words


def _restored(words: str, part: Part, shape: str, builder: Builder) -> str:
    if part.words > 1:
        shape = builder.concatenate([shape, builder.constant([part.words])], _SHAPE)
    words = _reshaped(words, shape, _WORD, builder)
    if part.dtype == _WORD:
        return words
    return builder.add("Bitcast", [words], T=_WORD, type=part.dtype)


def _reshaped(tensor: str, shape: str, dtype: tf.DType, builder: Builder) -> str:
    return builder.add("Reshape", [tensor, shape], T=dtype, Tshape=_SHAPE)
