"""Embedding tables whose rows are sharded over parameter servers."""

from tfdist._support.names import PublicNames

__all__, __getattr__, __dir__ = PublicNames(__file__).exported(globals())
