"""Checkpoints of `fit`, and how it goes on from one."""
