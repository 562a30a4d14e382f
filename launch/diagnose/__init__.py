"""Observations of `launch.doctor`, and their interpretation."""
