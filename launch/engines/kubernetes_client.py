"""Kubernetes as the official client reaches it, with objects as plain data."""

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from launch.engines.engine import EngineError

MISSING = (
    "the package kubernetes is not installed: pip install 'kubernetes>=28' (the extra "
    "`kubernetes`), here and not in the image"
)
"""The message where the optional packages are needed and missing."""

KINDS = ("Job", "Pod", "Service", "Secret", "NetworkPolicy")
"""The kinds of a job's objects, in the order in which they are deleted."""

_TIMEOUT = 15.0  # seconds
_READS = 2  # of an answer that does not come


class KubernetesClient:
    """The objects of one namespace.

    Every method raises `EngineError` if Kubernetes refuses, or does not answer.

    Args:
        context: The context of the user's kubeconfig; '' for the current one.
        namespace: The namespace; '' for that of the context.
        kubeconfig: The files, as in KUBECONFIG; '' for the user's.
    """

    def __init__(
        self, context: str = "", namespace: str = "", kubeconfig: str = ""
    ) -> None:
        try:
            import urllib3
            from kubernetes import client, config
        except ImportError:
            raise EngineError(MISSING) from None
        self._client = client
        files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        paths = os.path.expanduser(files)
        chosen: dict[str, Any] = {}
        settings = client.Configuration()
        # By default, a server that accepts a connection and is silent is asked four times.
        settings.retries = urllib3.Retry(3, read=_READS - 1)
        try:
            if _is_in_pod() and not any(map(os.path.exists, paths.split(os.pathsep))):
                config.load_incluster_config(settings)
                with open(f"{_ACCOUNT}/namespace") as file:
                    chosen = {"namespace": file.read().strip()}
            else:
                asked = {"config_file": paths, "context": context or None}
                contexts, current = config.list_kube_config_contexts(paths)
                named = [each for each in contexts if each["name"] == context]
                chosen = (named[0] if named else current)["context"]
                config.load_kube_config(**asked, client_configuration=settings)
        except (config.ConfigException, OSError) as error:
            raise EngineError(
                f"there is no way to Kubernetes in {files}: {_why(error)}. Set KUBECONFIG or "
                "--context to a cluster that kubectl reaches"
            ) from None
        self.namespace: str = namespace or chosen.get("namespace") or "default"
        self._api = api = client.ApiClient(settings)
        self._core = client.CoreV1Api(api)
        self._batch = client.BatchV1Api(api)
        self._network = client.NetworkingV1Api(api)

    def version(self) -> tuple[int, int]:
        """Returns the server's version."""
        get = self._client.VersionApi(self._api).get_code
        found = self._ask("tell its version", get)
        # Managed clusters add a plus, as in `29+`.
        return int(found["major"]), int(found["minor"].rstrip("+"))

    def create(self, made: dict[str, Any]) -> None:
        """Creates an object."""
        kind, create = made["kind"], self._verb("create", made["kind"])
        # Otherwise Kubernetes silently drops a user's field that it does not know.
        create = partial(create, self.namespace, made, field_validation="Strict")
        self._ask(f"create the {kind} {made['metadata']['name']}", create)

    def find(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Returns the objects of a kind that have labels, such as the recent events."""
        look = partial(
            self._verb("list", kind), self.namespace, label_selector=selector
        )
        return list(self._ask(f"list each {kind}", look)["items"])

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object and all that it has made; one that is gone already is fine."""
        delete = partial(
            self._verb("delete", kind),
            *(name, self.namespace),
            # By default, deleting a Job by the API leaves its pods.
            propagation_policy="Background",
        )
        self._ask(f"delete the {kind} {name}", delete, missing={})

    def log(self, pod: str, since: int | None) -> Iterator[bytes]:
        """Yields a pod's log as it comes, each line after the time of its writing.

        It begins `since` seconds ago, or at the beginning.
        """
        asked: dict[str, Any] = {"follow": True, "timestamps": True}
        if since is not None:
            asked["since_seconds"] = since
        try:
            answer: Any = self._core.read_namespaced_pod_log(
                pod, self.namespace, _preload_content=False, **asked
            )
            try:
                yield from answer.stream(amt=64 * 1024)
            finally:
                answer.close()
        except Exception as error:
            raise EngineError(f"the log of {pod} cannot be read: {error}") from None

    def _verb(self, verb: str, kind: str) -> Callable[..., Any]:
        api = {"Job": self._batch, "NetworkPolicy": self._network}.get(kind, self._core)
        name = re.sub("(?<=.)(?=[A-Z])", "_", kind).lower()
        found: Callable[..., Any] = getattr(api, f"{verb}_namespaced_{name}")
        return found

    def _ask(
        self,
        what: str,
        call: Callable[..., Any],
        missing: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        try:
            answer = call(_request_timeout=_TIMEOUT, _preload_content=False)
            return dict(json.loads(answer.data))
        except self._client.ApiException as error:
            if error.status == 404 and missing is not None:
                return missing
            raise EngineError(f"Kubernetes does not {what}: {_words(error)}") from None
        except Exception as error:
            # The client passes on what urllib3, ssl and json raise.
            raise EngineError(f"Kubernetes does not {what}: {error}") from None


_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def _is_in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and os.path.exists(_ACCOUNT)


def _why(error: Exception) -> str:
    """The client calls a file that is missing an invalid one."""
    return str(error).removeprefix("Invalid kube-config file. ").rstrip(".")


def _words(error: Any) -> str:
    body = error.body or b""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.status}, {error.reason}"
