"""Plans: which ps holds each variable of a model, computed ahead of time."""
