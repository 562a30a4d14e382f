"""The base of errors that refuse a program while TensorFlow traces it."""


class RefusalError(ValueError):
    """A program needs what its strategy cannot do."""

    # AutoGraph replaces errors by one of its own unless they are made from a message alone.
    __init__ = Exception.__init__
