"""What can be wrong with a graph of layers, its devices, or a placement. Pure."""


class LayerGraphError(ValueError):
    """A graph of layers that is none: the message says what to change."""


class UnknownGraphError(ValueError):
    """A model whose graph of layers is not known, such as a subclassed one."""


class DoesNotFitError(ValueError):
    """Layers that need more memory than the devices have.

    Attributes:
        missing: How many bytes are missing.
    """

    def __init__(self, message: str, missing: int) -> None:
        super().__init__(message)
        self.missing = missing
