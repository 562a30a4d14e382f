"""The graph of one step: which task computes what, and what they send each other."""
