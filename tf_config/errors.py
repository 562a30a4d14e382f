"""Errors about a cluster, and how they show what was received."""

import difflib
import reprlib
from collections.abc import Sequence

_OTHER_NAMES = {"master": "chief", "coordinator": "chief", "parameter_server": "ps"}

_repr = reprlib.Repr()
_repr.maxstring = 100


class Mistake(ValueError):
    """A mistake of the user, which a command shows as one message, with status 2."""


class ClusterError(Mistake):
    """A cluster, a task or a TF_CONFIG is invalid; the message says how to correct it."""


def check_name(kind: str, name: object, allowed: Sequence[str]) -> None:
    """Rejects a name that is not allowed, and suggests the closest one that is.

    >>> check_name("job", "Master", ["chief", "worker"])
    Traceback (most recent call last):
    tf_config.errors.ClusterError: unknown job 'Master'; it is one of chief, worker; \
did you mean 'chief'?

    Raises:
        ClusterError: If `name` is not in `allowed`.
    """
    if name in allowed:
        return
    raise ClusterError(
        f"unknown {kind} {show(name)}; it is one of {', '.join(allowed)}"
        f"{_hint(name, allowed)}"
    )


def show(value: object) -> str:
    """Returns the `repr` of a value, shortened to fit in an error."""
    return _repr.repr(value)


def _hint(name: object, allowed: Sequence[str]) -> str:
    if not isinstance(name, str):
        return ""
    meant = _OTHER_NAMES.get(name.lower(), name.lower())
    close = difflib.get_close_matches(meant, allowed, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
