"""Federated learning: algorithm, server and clients; splits, rules, attacks, noise.

Data never leaves a client: it trains on its own examples, and the server makes one update
of those of a round. All but the training itself is pure: numpy is all it needs, but for
epsilon, which comes from `dp-accounting`. Each name imports its module when it is
first used, and those of `execution` import TensorFlow.
"""

from tfdist._support.names import PublicNames

__all__, __getattr__, __dir__ = PublicNames(__file__).exported(globals())
