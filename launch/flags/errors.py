"""Errors of a command line."""


class UsageError(ValueError):
    """The command line is wrong; the message says how to correct it."""


class ScriptError(UsageError):
    """The script cannot be run, whatever the flags are."""
