"""Objects of Kubernetes as YAML that every reader of YAML understands alike."""

import re
from collections.abc import Sequence
from typing import Any

from launch.engines.engine import EngineError

MISSING = (
    "the package kubernetes is not installed: pip install 'tfdist[kubernetes]', here and "
    "not in the image"
)
"""What to say where the optional packages are needed and missing."""

_PLAIN_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9./-]*")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def dump(objects: Sequence[dict[str, Any]]) -> str:
    """Returns the objects as documents of YAML, with every string in quotes.

    Raises:
        EngineError: If PyYAML is missing, or a string has bytes that are no text.
    """
    yaml = _yaml()

    class Dumper(yaml.SafeDumper):  # type: ignore[name-defined]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def string(dumper: Any, text: str) -> Any:
        # Readers disagree on what is a number or a truth value: 1e3, 0o7, y.
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')

    def mapping(dumper: Any, value: dict[str, Any]) -> Any:
        node = dumper.represent_mapping("tag:yaml.org,2002:map", value)
        for key, _ in node.value:
            if _PLAIN_KEY.fullmatch(key.value) and key.value.lower() not in _WORDS:
                key.style = None
        return node

    Dumper.add_representer(str, string)
    Dumper.add_representer(dict, mapping)
    check_text(objects)
    text: str = yaml.dump_all(
        objects, Dumper=Dumper, sort_keys=False, width=10**6, explicit_start=True
    )
    return text


def load(text: str, name: str) -> Any:
    """Reads a document of YAML.

    Args:
        text: The document.
        name: Where it comes from, for errors.

    Raises:
        EngineError: If PyYAML is missing, or it is no YAML.
    """
    yaml = _yaml()
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise EngineError(f"{name} is no YAML: {error}") from None


def check_text(value: Any) -> None:
    """Checks that every string can be sent.

    Raises:
        EngineError: If one cannot.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise EngineError(
                f"{value!r} has bytes that are no UTF-8, and Kubernetes takes text only: "
                "write it in UTF-8"
            ) from None
        if "\0" in value:
            raise EngineError(f"{value!r} has a zero byte: omit it")
    elif isinstance(value, dict):
        for name, each in value.items():
            check_text(name)
            check_text(each)
    elif isinstance(value, list | tuple):
        for each in value:
            check_text(each)


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise EngineError(MISSING) from None
    return yaml
