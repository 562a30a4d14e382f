"""All-reduce: how the gradients of all replicas meet, and what that costs."""
