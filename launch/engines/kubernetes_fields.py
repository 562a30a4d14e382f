"""Which fields the parts of a pod's spec have, by the types of the official client."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from launch.engines.engine import EngineError

_LIST = re.compile(r"[Ll]ist\[(.*)\]")
_MAPPING = re.compile(r"[Dd]ict[\[(]str, (.*)[\])]")


def check(value: Any, kind: str = "V1PodSpec", path: str = "") -> None:
    """Checks that each field is known; does nothing if the client is not installed.

    Args:
        value: A part of an object.
        kind: Its type, as the client writes it.
        path: Where it is in the part that the user wrote.

    Raises:
        EngineError: If a field is unknown, or a part has another form.
    """
    try:
        from kubernetes import client
    except ImportError:
        return
    if of_items := _LIST.fullmatch(kind):
        if not isinstance(value, list):
            raise EngineError(f"{path} is a list; received {value!r}")
        for index, item in enumerate(value):
            check(item, of_items[1], f"{path}[{index}]")
        return
    if of_values := _MAPPING.fullmatch(kind):
        for name, item in _mapping(value, path).items():
            check(item, of_values[1], f"{path}.{name}")
        return
    model = getattr(client, kind, None)
    if model is None:
        return  # A number, a text, a time: Kubernetes knows which it takes.
    types = {
        model.attribute_map[ours]: each for ours, each in model.openapi_types.items()
    }
    for name, item in _mapping(value, path).items():
        here = f"{path}.{name}".lstrip(".")
        if name not in types:
            near = difflib.get_close_matches(str(name), types, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise EngineError(
                f"Kubernetes has no field {here}{meant}: "
                f"{path or 'the spec of a pod'} has {', '.join(sorted(types))}"
            )
        check(item, types[name], here)


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise EngineError(f"{path} is a mapping; received {value!r}")
    return value
