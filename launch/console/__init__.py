"""What the terminal of a job shows."""
