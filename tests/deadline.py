"""How long a test waits for what must come: a busy machine may be fifty times as slow."""

DEADLINE = 120.0  # seconds; for what takes a moment
PROGRAM_DEADLINE = 500.0  # seconds; for a program that imports TensorFlow, and trains
