"""The state of an object: its plain attributes that changed since it was created.

This separates a callback's state from its settings without help from the callback:
`patience` keeps its initial value, `wait` does not. A program that is restarted with
other settings keeps the new settings.
"""

import logging
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.checkpoint.plain import NotPlainError, UnkeptError, to_json

_log = logging.getLogger("tfdist")


class Changes:
    """The plain attributes of objects that change from their initial state.

    An array counts as changed when another array replaces it, or its checksum differs.
    """

    def __init__(self, objects: Iterable[Any], ignored: Iterable[str] = ()) -> None:
        self._ignored = frozenset(ignored)
        self._objects = list(objects)
        self._told: set[str] = set()
        self._first = [self._read(each) for each in self._objects]

    def state(self, arrays: dict[str, Any]) -> list[Any]:
        """Returns the class and the changed attributes of each object, for JSON.

        `arrays` receives what JSON cannot hold.
        """
        states = []
        for each, first in zip(self._objects, self._first, strict=True):
            changed = {
                name: to_json(getattr(each, name), arrays)
                for name, now in self._read(each).items()
                if now != first.get(name)
            }
            states.append([type(each).__name__, changed])
        return states

    def _read(self, owner: Any) -> dict[str, "_Seen"]:
        seen = {}
        for name, value in vars(owner).items():
            arrays: dict[str, Any] = {}
            if name not in self._ignored:
                try:
                    seen[name] = _Seen(to_json(value, arrays), list(arrays.values()))
                except UnkeptError as error:
                    self._warn(f"{type(owner).__name__}.{name}", error)
                # A model or a dataset is not state; a list may contain itself.
                except (NotPlainError, RecursionError):
                    continue
        return seen

    def _warn(self, attribute: str, why: UnkeptError) -> None:
        if attribute in self._told:
            return
        self._told.add(attribute)
        _log.warning(
            "checkpoints do not keep the attribute %s, which has %s: a fit that continues has "
            "the value that the script gives it. Use an array of numbers, text or dates, or one "
            "of Python's own containers",
            attribute,
            why,
        )


@dataclass(eq=False)
class _Seen:
    """A value at one time. It holds the arrays, so that no new one reuses their memory."""

    json: Any
    arrays: list[Any]

    def __post_init__(self) -> None:
        # The memory and its layout: `to_json` makes a new view of an array at each call.
        # A callback may fill an array in place.
        self.key = (
            self.json,
            [(each.__array_interface__, _checksum(each)) for each in self.arrays],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Seen) and self.key == other.key


def _checksum(array: np.ndarray) -> int:
    if not array.nbytes:
        return 0
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)
