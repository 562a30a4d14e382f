"""The strategy as the rooms of parameter servers see it, and the devices of its workers."""
