"""What runs the rounds of `tfdist.federated` on TensorFlow: clients' training, simulation."""
