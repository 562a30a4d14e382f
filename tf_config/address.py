"""A task's address, `host:port`."""

import ipaddress
import re

from tf_config.errors import ClusterError, show


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port`, and removes the brackets around an IPv6 host.

    >>> split_address("ps0.example.com:2222"), split_address("[::1]:2222")
    (('ps0.example.com', 2222), ('::1', 2222))

    Raises:
        ClusterError: If the address is malformed.
    """
    if problem := address_problem(address):
        raise ClusterError(f"the address {show(address)} {problem}")
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def bracketed(host: str) -> str:
    """Returns a host as it stands in an address: an IPv6 address in brackets.

    >>> bracketed("ps0"), bracketed("::1"), bracketed("[::1]")
    ('ps0', '[::1]', '[::1]')
    """
    return f"[{host.strip('[]')}]" if ":" in host else host


def address_problem(address: object) -> str | None:
    """Describes what is wrong with an address and what to do; None if it is valid.

    >>> address_problem("ps0")
    "has no port: write host:port, for example 'ps0:2222'"
    """
    if not isinstance(address, str):
        return "is not a string: write it as 'host:port'"
    if not address:
        return "is empty: write host:port, or remove the extra comma"
    if any(character.isspace() for character in address):
        return "contains white space: remove it"
    if "," in address:
        return "contains a comma: write each address as a separate item"
    if "://" in address:
        scheme, rest = address.split("://", 1)
        return f"has the scheme {show(scheme)}: write {show(rest)}"
    return _host_or_port_problem(address)


def _host_or_port_problem(address: str) -> str | None:
    host, colon, port = address.rpartition(":")
    # The last colon of [::1] without a port belongs to the host.
    if not colon or not port or address.endswith("]"):
        example = address.rstrip(":") + ":2222"
        return f"has no port: write host:port, for example {show(example)}"
    if not host:
        return f"has no host: write the machine's name before {show(colon + port)}"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "has more than one colon: write host:port, or [IPv6]:port"
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        return f"has the port {show(port)}: a port is a number from 1 to 65535"
    if not _is_host(host):
        return (
            f"has the host {show(host)}: a host is a machine's name, an IPv4 "
            "address, or an IPv6 address in brackets"
        )
    return None


def _is_host(host: str) -> bool:
    try:
        if host.startswith("["):
            # A zone (%eth0) is only meaningful on one machine.
            return ipaddress.IPv6Address(host[1:-1]).scope_id is None
        if re.fullmatch("[0-9.]+", host):
            return bool(ipaddress.IPv4Address(host))
        return bool(re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_.-]*", host))
    except ValueError:
        return False
