"""Execution of federated rounds on TensorFlow: clients' training and simulation."""
