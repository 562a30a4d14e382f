"""A job as plain data: its plan, its tasks, what they need, and who runs the script."""
