"""The backend that Keras will choose, found without importing it."""

import json
import os
from collections.abc import Mapping

VARIABLE = "KERAS_BACKEND"
NEEDED = "tensorflow"


def backend(environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns the backend of Keras in an environment, and what chooses it.

    >>> backend({"KERAS_BACKEND": "jax"})
    ('jax', 'KERAS_BACKEND')
    """
    if environ.get(VARIABLE):
        return environ[VARIABLE], VARIABLE
    home = environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    path = os.path.join(home, "keras.json")
    try:
        with open(path, encoding="utf-8") as file:
            return str(json.load(file)["backend"]), path
    except (OSError, ValueError, KeyError, TypeError):
        return NEEDED, "the default"


def problem(environ: Mapping[str, str]) -> str:
    """Returns why Keras would not use TensorFlow in an environment, or ''."""
    found, by = backend(environ)
    if found == NEEDED:
        return ""
    return (
        f"Keras must use the backend {NEEDED}; received {found!r} from {by}: "
        f"export {VARIABLE}={NEEDED}"
    )
