"""Hosts on this machine, for benchmarks: see `launch.network.namespaces`."""

from launch.network.namespaces import Network, NetworkError, network

__all__ = ["Network", "NetworkError", "network"]
