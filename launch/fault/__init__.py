"""Faults on purpose: a schedule of them, and invariants that must hold all the same."""
