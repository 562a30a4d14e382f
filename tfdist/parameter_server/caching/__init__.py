"""Values that workers keep, and when they move."""
