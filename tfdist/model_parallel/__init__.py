"""Models in pieces: schedules of stages, and which device computes which layer."""
