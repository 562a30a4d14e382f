"""Atomic checkpoints: a process that is killed never leaves a partial one."""
