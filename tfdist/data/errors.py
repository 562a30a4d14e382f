"""Errors about sources of data."""

from tfdist._support.errors import Error


class SourceError(Error, ValueError):
    """A source cannot be read by its leases, or is not what it was when it was opened."""
