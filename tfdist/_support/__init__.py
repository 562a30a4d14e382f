"""Helpers that import nothing of tfdist."""
