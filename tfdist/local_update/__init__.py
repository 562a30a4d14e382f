"""Local steps on every worker, and a mix of their models now and then."""
