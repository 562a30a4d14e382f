"""The configuration of stunnel at one end of a job's connections: a pure decision.

Every task has the address 127.0.0.1:PORT, with the same port for the whole cluster. On
the task's own host TensorFlow listens there. On every other host stunnel does, and
carries the connection to the stunnel of the task's host, which carries it to the task.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tf_config import Task

OLDEST = (5, 50)
"""The oldest version of stunnel that has all of the options."""

# Both ends are ours, so neither needs what older clients would. Every CPU of the last ten
# years encrypts AES-GCM in hardware; without that, ChaCha20 is faster.
# TIMEOUTidle: by default, stunnel closes a connection after 12 silent hours.
_COMMON = """\
foreground = yes
pid =
syslog = no
debug = 5
sslVersion = TLSv1.3
ciphersuites = TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256
curves = X25519
CAfile = /dev/fd/@authority@
cert = /dev/fd/@certificate@
key = /dev/fd/@key@
verifyChain = yes
requireCert = yes
socket = l:TCP_NODELAY=1
socket = r:TCP_NODELAY=1
socket = r:SO_KEEPALIVE=1
socket = r:TCP_KEEPIDLE=20
socket = r:TCP_KEEPINTVL=10
socket = r:TCP_KEEPCNT=4
TIMEOUTidle = 2000000
"""


@dataclass(frozen=True)
class TunnelRoute:
    """The route to a task.

    Attributes:
        task: The task.
        port: Its port on 127.0.0.1, everywhere.
        address: `host:port` of the stunnel on its host.
    """

    task: Task
    port: int
    address: str


def name(task: Task) -> str:
    """Returns the name of a task in its certificate.

    >>> name(Task("ps", 0))
    'ps-0.tfdist'
    """
    return f"{task.job}-{task.index}.tfdist"


def configuration(
    port: int,
    here: Iterable[TunnelRoute],
    elsewhere: Iterable[TunnelRoute],
    *,
    has_ipv6: bool = False,
) -> str:
    """Returns the configuration of the stunnel on one host.

    Args:
        port: The port that other hosts connect to; the only one that is open to them.
        here: The tasks of this host.
        elsewhere: All other tasks.
        has_ipv6: Whether this host has IPv6; it then listens there, too.
    """
    accept = f":::{port}" if has_ipv6 else f"0.0.0.0:{port}"
    # A client that names no task reaches nothing, because port 0 is nobody's.
    parts = [
        _COMMON,
        f"[tls]\naccept = {accept}\nconnect = 127.0.0.1:0\n",
    ]
    parts += [
        f"[{route.task.job}-{route.task.index}]\n"
        f"sni = tls:{name(route.task)}\n"
        f"connect = 127.0.0.1:{route.port}\n"
        for route in here
    ]
    # The other end must have a certificate with the name of the very task.
    parts += [
        f"[to-{route.task.job}-{route.task.index}]\n"
        "client = yes\n"
        # A pod that takes the place of another has its name, and another address.
        "delay = yes\n"
        f"accept = 127.0.0.1:{route.port}\n"
        # It takes what follows the last colon for the port, and knows no brackets.
        f"connect = {route.address.replace('[', '').replace(']', '')}\n"
        f"sni = {name(route.task)}\n"
        f"checkHost = {name(route.task)}\n"
        for route in elsewhere
    ]
    return "\n".join(parts)
