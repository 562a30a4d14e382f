"""Modes of `--secure`, which protect the tasks of a job on several hosts."""

from collections.abc import Sequence

AUTO, TLS, PRIVATE, OFF = MODES = ("auto", "tls", "private", "off")

POLICY = "policy"
"""The engine closes the hosts' ports to unauthorized hosts; no user chooses it."""

HELP = (
    "What keeps strangers away from the tasks. tls: mutual TLS between the hosts, and "
    "TensorFlow's own ports closed to other hosts; it needs stunnel on every host. "
    "private: nothing, since you know that only you can reach the hosts' ports. off: "
    "nothing. auto: tls."
)

INSTALL = "apt-get install stunnel4 (or dnf install stunnel)"

OTHERWISE = (
    "--secure=private does without it on a network that nobody else can reach, and "
    "--secure=off lets everyone who can reach the hosts run code there"
)
"""The other choices of a user who cannot have TLS."""


def resolve(mode: str) -> str:
    """Returns which protection a mode means: one of the modes but `auto`.

    >>> [resolve(mode) for mode in MODES]
    ['tls', 'tls', 'private', 'off']
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; it is one of {', '.join(MODES)}")
    return TLS if mode == AUTO else mode


def notice(protection: str, hosts: Sequence[str]) -> str:
    """Returns the notice for the user about a job."""
    there = ", ".join(dict.fromkeys(hosts))
    if protection == TLS:
        between = "; mutual TLS between the hosts" if len({*hosts}) > 1 else ""
        return f"the ports are closed to other machines{between}"
    if protection == POLICY:
        return (
            "a NetworkPolicy lets only the pods of this job reach its ports, where the "
            "network of the cluster enforces such policies; the traffic between them is "
            "not encrypted"
        )
    if protection == PRIVATE:
        return (
            f"the ports of {there} are open, and the traffic is not encrypted "
            "(--secure=private)"
        )
    return (
        f"WARNING: the ports are open (--secure=off): anyone who can reach {there} can "
        "run code there as the user of the tasks, without a password, and read what "
        "they send each other; --secure=tls closes them"
    )
