"""Addresses on this machine for servers that a test starts later."""

from launch.network import ports


def free_addresses(count: int) -> list[str]:
    """Returns addresses that no server and no outgoing connection is about to take."""
    return [f"127.0.0.1:{port}" for port in ports.pick(count)]
