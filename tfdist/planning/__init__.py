"""Plans: which ps holds each variable of a model, computed ahead of time."""

from tfdist._support.names import PublicNames

__all__, __getattr__, __dir__ = PublicNames(__file__).exported(globals())
