"""Errors about sources of data."""


class SourceError(ValueError):
    """A source cannot be read by its leases, or is not what it was when it was opened."""
