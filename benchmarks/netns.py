"""Hosts on this machine, for benchmarks: see `launch.network.namespaces`."""

from launch.network.namespaces import Namespaces, NetworkError, network

__all__ = ["Namespaces", "NetworkError", "network"]
