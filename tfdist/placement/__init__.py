"""Placement of variables on ps, and splits of large ones: pure decisions."""
