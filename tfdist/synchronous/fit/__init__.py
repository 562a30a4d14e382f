"""Implementation of Keras's `fit`: steps on all replicas, functions and refusals."""
