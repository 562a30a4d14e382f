"""Layers split within: each part of a weight has a device of its own."""
