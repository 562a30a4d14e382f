"""Errors of a command line."""

from tf_config.errors import Mistake


class UsageError(Mistake):
    """The command line is wrong; the message says how to correct it."""


class ScriptError(UsageError):
    """The script cannot be run, whatever the flags are."""
