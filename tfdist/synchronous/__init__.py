"""Strategies whose workers step together, each with a copy of the model."""
