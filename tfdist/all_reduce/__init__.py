"""All-reduce: sums of the gradients of all replicas, and their costs."""
