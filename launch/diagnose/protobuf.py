"""As much of the protocol buffers' wire format as a few calls take.

A message is the sum of its fields: `field(1, "a") + field(2, 7)`. The format is
https://protobuf.dev/programming-guides/encoding/.
"""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}

Value = int | bytes


class MalformedError(ValueError):
    """Bytes that are not a message."""


def field(number: int, value: int | str | bytes) -> bytes:
    r"""Writes one field: a whole number >= 0, a text, or bytes, such as a message.

    >>> field(1, "ps"), field(2, 300)
    (b'\n\x02ps', b'\x10\xac\x02')
    """
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def read(message: bytes) -> dict[int, list[Value]]:
    r"""Reads the fields of a message: the values of each number, in their order.

    Numbers of a fixed size are left as bytes, little-endian.

    >>> read(b'\n\x02ps\x10\xac\x02')
    {1: [b'ps'], 2: [300]}

    Raises:
        MalformedError: If the bytes end early, or are no message.
    """
    fields: dict[int, list[Value]] = {}
    position = 0
    while position < len(message):
        key, position = read_varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value: Value
            value, position = read_varint(message, position)
        elif kind == _BYTES or kind in _SIZES:
            size = _SIZES.get(kind)
            if size is None:
                size, position = read_varint(message, position)
            value, position = message[position : position + size], position + size
            if position > len(message):
                raise MalformedError(f"a field of {size} bytes ends early")
        else:
            raise MalformedError(f"there is no wire type {kind}")
        fields.setdefault(number, []).append(value)
    return fields


def first_bytes(message: bytes, *path: int) -> bytes:
    """The first field of that number, within the first of the one before, and so on.

    >>> first_bytes(field(1, field(2, "deep")), 1, 2)
    b'deep'

    Raises:
        MalformedError: If there is none.
    """
    for number in path:
        found = [each for each in read(message).get(number, ()) if each != b""]
        if not found or not isinstance(found[0], bytes):
            raise MalformedError(f"there is no field {number}")
        message = found[0]
    return message


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def read_varint(message: bytes, position: int = 0) -> tuple[int, int]:
    """Reads a number, and returns it with the position after it.

    Raises:
        MalformedError: If the bytes end early.
    """
    value = shift = 0
    while position < len(message) and shift < 70:
        octet = message[position]
        position += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, position
        shift += 7
    raise MalformedError("a number ends early")
