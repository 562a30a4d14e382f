"""What runs the rounds of `tfdist.research.federated` on TensorFlow: clients' training, simulation."""
