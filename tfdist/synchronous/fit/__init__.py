"""What Keras's `fit` calls: steps on all replicas, their functions, and what is refused."""
