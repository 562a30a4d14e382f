"""When a step may start and write, and which gradients count. Pure."""
