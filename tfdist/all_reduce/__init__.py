"""All-reduce: how the gradients of all replicas are summed, and what that costs."""
