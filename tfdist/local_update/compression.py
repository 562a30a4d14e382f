"""Encodings of vectors: full precision, bfloat16 or int8 with error feedback."""

from typing import Protocol

import numpy as np

from tfdist.local_update.message import bytes_of

BLOCK = 1024
"""Elements that share a scale in int8."""

_LARGEST = 127
_SCALE = 4  # bytes
_ROW = _SCALE + BLOCK


class Narrow(Protocol):
    """Encodes numbers in fewer bits. The size depends on their count alone.

    Attributes:
        block: How many elements are written together. The bytes of a block follow those of
            the one before it, and depend on nothing else.
    """

    block: int

    def size(self, elements: int) -> int:
        """Returns how many bytes some elements take."""

    def encode(self, vector: np.ndarray) -> np.ndarray:
        """Returns the elements as uint8."""

    def decode(self, payload: np.ndarray) -> np.ndarray:
        """Returns the elements that these bytes are, as a reader finds them."""


class BFloat16:
    """The upper half of float32, rounded to nearest even: 2 bytes, 8 significant bits."""

    block = 1

    def size(self, elements: int) -> int:
        """Returns 2 bytes per element."""
        return 2 * elements

    def encode(self, vector: np.ndarray) -> np.ndarray:
        """Returns the elements as uint8."""
        bits = vector.astype(np.float32).view(np.uint32)
        # A tie is rounded up if the last bit that stays is 1, and so to even.
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        # Rounding up the bits of a NaN could make it a zero.
        rounded = np.where(np.isnan(vector), bits | np.uint32(0x400000), bits + half)
        return bytes_of((rounded >> np.uint32(16)).astype(np.uint16))

    def decode(self, payload: np.ndarray) -> np.ndarray:
        """Returns the elements as float32."""
        halves = payload.view(np.uint16).astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32)


class Int8:
    """Whole multiples of a scale, from -127 to 127: 1 byte, and 4 bytes per block.

    The scale of a block of 1,024 elements is 1/127 of its largest magnitude. So rounding
    changes an element by at most 1/254 of that, and the square of a block's norm by at most
    1024/254² of it, 1.6%: a contraction, as error feedback needs it. A NaN or an infinity
    makes its block NaN.
    """

    block = BLOCK

    def size(self, elements: int) -> int:
        """Returns a byte per element and 4 per block."""
        return elements + _SCALE * -(-elements // BLOCK)

    def encode(self, vector: np.ndarray) -> np.ndarray:
        """Returns the scale and the multiples of each block as uint8."""
        blocks = np.zeros((-(-len(vector) // BLOCK), BLOCK), np.float32)
        blocks.reshape(-1)[: len(vector)] = vector
        scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(_LARGEST)
        # A block with an infinity or a NaN becomes NaN as a whole: no number would be
        # right.
        scales = np.where(np.isfinite(scales), scales, np.float32(np.nan))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            multiples = np.nan_to_num(blocks / scales, posinf=0, neginf=0)
        # A scale so small that it has lost digits could give more.
        multiples = np.clip(np.rint(multiples), -_LARGEST, _LARGEST).astype(np.int8)
        rows = np.concatenate([scales.view(np.uint8), multiples.view(np.uint8)], axis=1)
        # Without what fills up the last block.
        return rows.reshape(-1)[: self.size(len(vector))]

    def decode(self, payload: np.ndarray) -> np.ndarray:
        """Returns the elements as float32."""
        rows = np.zeros((-(-len(payload) // _ROW), _ROW), np.uint8)
        rows.reshape(-1)[: len(payload)] = payload
        scales = np.ascontiguousarray(rows[:, :_SCALE]).view(np.float32)
        blocks = scales * rows[:, _SCALE:].view(np.int8)
        return blocks.reshape(-1)[: len(payload) - _SCALE * len(rows)]


NARROW: dict[str, type[BFloat16 | Int8]] = {"bfloat16": BFloat16, "int8": Int8}
"""The values of `wire_dtype` besides None."""


class Coder:
    """Writes the first elements of a vector in fewer bits, and the rest in all of theirs.

    A worker reads the bytes of a part alone. Workers may disagree for a while about how
    many parts a vector has, if one hears of a loss before another. So where an element
    is written does not depend on the parts: those end at a `cut`, where a block ends.
    The first `until` elements are narrow. Statistics such as a variance come after
    them: one that rounding has made negative is no longer one.
    """

    def __init__(
        self, dtype: np.dtype, narrow: Narrow | None = None, until: int = 0
    ) -> None:
        self._dtype = dtype
        self._narrow = narrow
        self._until = 0 if narrow is None else until

    @property
    def is_exact(self) -> bool:
        """True if nothing is lost."""
        return self._narrow is None

    def cut(self, place: int) -> int:
        """Returns the last place, up to this one, where a part of a vector can end."""
        if self._narrow is None or place >= self._until:
            return place
        return place - place % self._narrow.block

    def size(self, begin: int, end: int) -> int:
        """Returns how many bytes the elements from one cut to another take."""
        until = min(max(self._until, begin), end)
        return self._head(until - begin) + (end - until) * self._dtype.itemsize

    def encode(self, part: np.ndarray, begin: int) -> np.ndarray:
        """Returns the elements from `begin`, a cut, as uint8."""
        if self._narrow is None:
            return bytes_of(part)
        until = max(self._until - begin, 0)
        head = self._narrow.encode(part[:until])
        return np.concatenate([head, bytes_of(part[until:])])

    def decode(self, payload: np.ndarray, begin: int) -> np.ndarray:
        """Returns the elements from `begin`, a cut, as a reader finds them."""
        if self._narrow is None:
            return payload.view(self._dtype)
        head = self._head(max(self._until - begin, 0))
        body = self._narrow.decode(payload[:head]).astype(self._dtype)
        return np.concatenate([body, payload[head:].view(self._dtype)])

    def _head(self, elements: int) -> int:
        return 0 if self._narrow is None else self._narrow.size(elements)


class ErrorFeedback:
    """Sends vectors one by one, and adds to each the rounding error of the last one.

    So the sum of what was sent is the sum of what was meant, less one residual: errors
    do not add up over rounds, and a change too small to be sent alone is sent later.
    Sources: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014;
    Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019. `residual` is what the last vector has lost.
    """

    def __init__(self, coder: Coder) -> None:
        self._coder = coder
        self._place = (0, 0)
        self.residual = np.zeros(0)

    def send(self, vector: np.ndarray, begin: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Returns the bytes of a vector, and the vector that a reader gets.

        The vector begins at `begin`, a cut, of the one that it is part of. A reader
        gets the elements in its dtype.
        """
        if self._coder.is_exact:
            return self._coder.encode(vector, begin), vector
        place = (begin, len(vector))
        # The residual of another part of a model says nothing about this one.
        meant = vector + self.residual if place == self._place else vector
        payload = self._coder.encode(meant, begin)
        sent = self._coder.decode(payload, begin)
        self._place, self.residual = place, meant - sent
        return payload, sent


class Wire:
    """The two streams of one worker: its vectors, and means of its part of them all."""

    def __init__(self, coder: Coder) -> None:
        self.coder = coder
        self.vectors = ErrorFeedback(coder)
        self.means = ErrorFeedback(coder)
