"""Checkpoints of `fit`, and how it continues from one."""
