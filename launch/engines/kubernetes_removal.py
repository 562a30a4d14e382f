"""Takes a job away: every object, in an order in which it can end well."""

import time

from launch.engines.engine import EngineError
from launch.engines.kubernetes_client import KINDS, KubernetesClient
from launch.engines.kubernetes_pods import LAUNCHER, Pods

_MOMENT = 0.1  # seconds
_TEARDOWN_TIMEOUT = 60.0


def selector(name: str) -> str:
    """Returns the labels by which a job's objects are found."""
    labels = Pods(name, "", ()).labels()
    return ",".join(f"{key}={value}" for key, value in labels.items())


def remove(client: KubernetesClient, name: str, grace_period: float) -> bool:
    """Deletes every object of a job, and waits until they are gone.

    Returns:
        Whether there were any.

    Raises:
        EngineError: If something does not go.
    """
    found = selector(name)
    deadline = time.monotonic() + 2 * grace_period + _TEARDOWN_TIMEOUT
    was_there = False
    # With its launcher, a job ends as by Ctrl-C; then nobody needs the other pods. A
    # JobSet would start another.
    groups = [f"{found},app.kubernetes.io/component={LAUNCHER}", found]
    for group in groups[bool(client.find("JobSet", found)) :]:
        while True:
            left = [
                (kind, each["metadata"])
                for kind in KINDS
                for each in client.find(kind, group)
            ]
            was_there |= bool(left)
            pods = any(kind == "Pod" for kind, _ in left)
            for kind, metadata in left:
                # What keeps strangers out stays as long as a pod is there.
                is_early = pods and kind in ("Service", "Secret", "NetworkPolicy")
                if "deletionTimestamp" not in metadata and not is_early:
                    client.delete(kind, metadata["name"])
            if not left:
                break
            if time.monotonic() > deadline:
                names = ", ".join(f"{kind} {each['name']}" for kind, each in left)
                raise EngineError(f"job {name} does not end: there is still {names}")
            time.sleep(_MOMENT)
    return was_there
