"""Flags of the commands, and the jobs that they describe."""
