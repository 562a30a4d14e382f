"""Execution of `tfdist.federated` on TensorFlow: clients' training, simulation."""
