"""Sources whose examples workers read themselves, so that none crosses the chief.

The names of modules that need TensorFlow, or a table, import it when they are first used.
"""

from tfdist._support.names import PublicNames

__all__, __getattr__, __dir__ = PublicNames(__file__).exported(globals())
