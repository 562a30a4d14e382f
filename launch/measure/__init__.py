"""What a job uses while it runs: CPU time, bytes, and the epochs of its script."""
