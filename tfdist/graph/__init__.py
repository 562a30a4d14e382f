"""Graphs of TensorFlow as plain data."""
