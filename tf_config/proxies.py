"""Finds proxies between tasks, which make TensorFlow hang silently.

TensorFlow's gRPC connects to other tasks, even on the same machine, through the HTTP
proxy of the environment, unless the environment exempts the host
(https://grpc.github.io/grpc/core/md_doc_environment_variables.html). Few proxies forward
such connections.
"""

import ipaddress
from collections.abc import Iterable, Mapping

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def proxied(hosts: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the hosts that would be reached through a proxy, each once.

    >>> proxied(["a.org", "10.0.0.7"], {"http_proxy": "http://p", "no_proxy": ".org"})
    ['10.0.0.7']
    """
    if not proxy(environ):
        return []
    entries = [each.strip().lower() for each in _exceptions(environ).split(",")]
    return [host for host in dict.fromkeys(hosts) if not _is_excepted(host, entries)]


def proxy(environ: Mapping[str, str]) -> str | None:
    """Returns the name of the variable that sets gRPC's proxy; None if there is none."""
    name = next((name for name in _PROXIES if name in environ), None)
    if name is None or not environ[name].lower().startswith("http://"):
        return None  # gRPC does not support any other kind of proxy.
    return name


def exception_for(hosts: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to set so that no proxy is used for these hosts.

    >>> exception_for(["a"], {"http_proxy": "http://p", "no_proxy": "b"})
    {'no_grpc_proxy': 'b,a'}
    """
    found = proxied(hosts, environ)
    if not found:
        return {}
    before = _exceptions(environ)
    return {"no_grpc_proxy": ",".join([*([before] if before else []), *found])}


def _exceptions(environ: Mapping[str, str]) -> str:
    name = next((name for name in _EXCEPTIONS if name in environ), None)
    return "" if name is None else environ[name]


def _is_excepted(host: str, entries: Iterable[str]) -> bool:
    return any(
        entry and (host.lower().endswith(entry) or _is_in_network(host, entry))
        for entry in entries
    )


def _is_in_network(host: str, entry: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
