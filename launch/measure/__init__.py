"""Measurements of a running job: CPU time, bytes, and the epochs of its script."""
