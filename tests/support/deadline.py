"""How long a test waits for what must come: a busy machine may be fifty times as slow.

What waits inside of another wait has the shorter limit, and pytest ends a test after the
`timeout` of setup.cfg, the longest of all.
"""

DEADLINE = 120.0  # seconds; for what takes a moment
STARTUP_DEADLINE = 200.0  # seconds; for servers, which import TensorFlow
PROGRAM_DEADLINE = 500.0  # seconds; for a program that imports TensorFlow, and trains

STARTUP_FLAG = f"--startup_timeout={STARTUP_DEADLINE:g}"  # of the launchers
