"""Keras 3 on a cluster of parameter servers and workers."""
