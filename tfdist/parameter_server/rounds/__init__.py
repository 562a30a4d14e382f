"""Rounds on the ps: gradients of several workers are averaged and applied at once."""
