"""Keeps a bound on staleness where steps write: on a ps, in TensorFlow operations."""
