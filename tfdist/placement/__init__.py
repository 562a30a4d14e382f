"""Which ps holds a variable, and how a large one is split: pure decisions."""
