"""Support for TF1-style programs: graph mode, and every task runs the script."""

from tfdist._support.names import PublicNames

__all__, __getattr__, __dir__ = PublicNames(__file__).exported(globals())
