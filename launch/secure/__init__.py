"""Closes the ports of a job to everyone but its own tasks, on several hosts."""
