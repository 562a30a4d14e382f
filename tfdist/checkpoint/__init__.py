"""Checkpoints that a killed process cannot leave half written."""
