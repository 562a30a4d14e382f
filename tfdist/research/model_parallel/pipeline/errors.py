"""The error about models that a pipeline cannot train."""

from tfdist._support.errors import RefusalError


class PipelineError(RefusalError):
    """A pipeline cannot train this model in this way: the message says what to change."""
