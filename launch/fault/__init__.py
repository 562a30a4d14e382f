"""Faults on purpose: a schedule of them, and what must hold all the same."""
