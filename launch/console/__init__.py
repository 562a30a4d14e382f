"""Formats the output of a job's tasks for the terminal."""
