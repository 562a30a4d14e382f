"""Distributed learning beyond the core: federated, pipelined, placed, split, simulated.

These packages may change in any release, and nothing in the core imports them. As in
`tfdist` itself, each public name imports its module when it is first used.
"""

from tfdist._support.names import PublicNames

__all__, __getattr__, __dir__ = PublicNames(__file__).exported(globals())
