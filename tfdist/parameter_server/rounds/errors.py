"""What rounds cannot do."""


class RoundError(ValueError):
    """The model needs something that `tfdist.Synchronous()` cannot do correctly."""
