"""Reads from a traced step how what a replica computes relates to the whole batch."""
