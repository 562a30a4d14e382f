"""Plans: where every variable of a model shall live, computed ahead of time."""
