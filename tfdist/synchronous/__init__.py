"""Strategies whose workers train in lockstep, each with a copy of the model."""
