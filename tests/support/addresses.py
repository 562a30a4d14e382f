"""Addresses on this machine for servers that a test starts later."""

from launch.network import ports


def free_addresses(count: int) -> list[str]:
    """Pick addresses that no outgoing connection will take meanwhile."""
    return [f"127.0.0.1:{port}" for port in ports.pick(count)]
