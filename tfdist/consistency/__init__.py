"""Policies for when steps start and write, and which gradients count. Pure."""
