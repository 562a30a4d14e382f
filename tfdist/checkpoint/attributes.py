"""What an object has come to know since it was made: its plain attributes that changed.

So a callback's state is told from its settings without its help: `patience` is as it
was made, and `wait` is not. A program that is started again with other settings keeps
those.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tfdist.checkpoint.plain import NotPlainError, to_json


class Changes:
    """Watches the plain attributes of objects.

    An array counts as changed when there is another in its place.

    Args:
        objects: As they are at the beginning.
        ignored: Names of attributes that are not theirs to restore.
    """

    def __init__(self, objects: Iterable[Any], ignored: Iterable[str] = ()) -> None:
        self._ignored = frozenset(ignored)
        self._objects = list(objects)
        self._first = [self._read(each) for each in self._objects]

    def state(self, arrays: dict[str, Any]) -> list[Any]:
        """Returns each object's class and changed attributes, for JSON and `arrays`."""
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
                except (NotPlainError, RecursionError):
                    continue
        return seen


@dataclass(eq=False)
class _Seen:
    """A value as it was; it keeps the arrays, lest others get their identity."""

    json: Any
    arrays: list[Any]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Seen)
            and self.json == other.json
            and list(map(id, self.arrays)) == list(map(id, other.arrays))
        )
