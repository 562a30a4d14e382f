"""Synchronous training on several workers, each with a copy of every variable."""
