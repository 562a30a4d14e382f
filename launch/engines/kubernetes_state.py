"""Pure functions that derive the state of a job from its Kubernetes objects."""

import json
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from launch.engines.engine import ENDED, Status
from launch.engines.kubernetes_objects import RETRIED, task_of
from launch.engines.kubernetes_pods import LAUNCHER

CANCELLED = 128 + signal.SIGTERM
"""The exit status of a job that was deleted."""

# A container waits for its image, or for its machine, with one of these.
_STARTING = ("ContainerCreating", "PodInitializing", "")


def end(
    jobs: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]
) -> Status | None:
    """Returns how a job ended, with the reason unless its program decided it; or None."""
    for pod in pods:
        if task_of(pod) == LAUNCHER:
            told = _state(pod, "terminated").get("message", "")
            try:
                return Status(ENDED, int(json.loads(told)["code"]))
            except (ValueError, KeyError, TypeError):
                continue
    for job in jobs:
        for condition in job.get("status", {}).get("conditions") or ():
            if condition["type"] == "Failed" and condition["status"] == "True":
                why = f"{condition.get('reason')}: {condition.get('message')}"
                name = job["metadata"]["name"]
                return Status(ENDED, 1, f"Kubernetes has given up on {name} ({why})")
    return None


def started(pods: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the tasks, the launcher among them, that have a pod whose program runs."""
    return {task_of(pod) for pod in pods if has_log(pod)} - _lost(pods)


def shortage(
    tasks: Collection[str], started: Collection[str], min_workers: int | None
) -> str:
    """Returns the missing parts of a job that cannot start, in words; '' if it can.

    `tasks` has the launcher, too; without `min_workers`, the job needs all.

    >>> shortage(["ps:0", "worker:0", "worker:1"], ["ps:0", "worker:1"], 1)
    ''
    """
    missing = set(tasks) - set(started)
    workers = [each for each in tasks if each.startswith("worker")]
    running = len(workers) - len(missing.intersection(workers))
    if missing and min_workers is None:
        return "not every pod runs"
    if needed := missing.difference(workers):
        return f"there is no running pod of {', '.join(sorted(needed))}"
    if min_workers is not None and running < min_workers:
        return (
            f"{running} of {len(workers)} workers run, and {min_workers} "
            f"{'is' if min_workers == 1 else 'are'} needed (--min_workers),"
        )
    return ""


def nodes(pods: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the node of each task that has one."""
    return {
        task_of(pod): pod["spec"]["nodeName"]
        for pod in pods
        if pod["spec"].get("nodeName") and not has_ended(pod)
    }


def _lost(pods: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the tasks whose pods have all failed."""
    there = {task_of(pod) for pod in pods if pod["status"].get("phase") != "Failed"}
    return {task_of(pod) for pod in pods} - there


def has_log(pod: Mapping[str, Any]) -> bool:
    """Returns True if a pod's program has been started."""
    return bool(_state(pod, "running") or _state(pod, "terminated"))


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Returns True if a pod's program has ended."""
    return bool(_state(pod, "terminated"))


def missing(
    pods: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], name: str
) -> list[str]:
    """Returns the causes that the job waits for, one line each."""
    found: dict[str, list[str]] = {}
    running = {task_of(pod) for pod in pods if _state(pod, "running")}
    for pod in pods:
        if (why := _why(pod)) and task_of(pod) not in running:
            found.setdefault(why, []).append(task_of(pod))
    lines = [f"{', '.join(dict.fromkeys(who))}: {why}" for why, who in found.items()]
    # If a pod may not even be created, only its Job has an event about it.
    refused = {}
    for event in events:
        about = event["involvedObject"]
        if about["name"].startswith(f"{name}-") and event.get("reason") in (
            *("FailedCreate", "FailedMount"),
        ):
            refused[about["name"]] = event.get("message", "")
    if len(pods) and all(map(has_log, pods)) and not refused:
        return lines
    return lines + [f"{name}: {why}" for name, why in refused.items()]


def _why(pod: Mapping[str, Any]) -> str:
    """Returns why a pod's program does not run; '' if it does, or soon will."""
    if ended := _state(pod, "terminated"):
        code, words = ended.get("exitCode"), ended.get("message", "").strip()
        if code in (0, *RETRIED):
            return ""
        return f"its program ends with {code}: {words or ended.get('reason')}"
    if waiting := _state(pod, "waiting"):
        reason = waiting.get("reason", "")
        if reason not in _STARTING:
            return f"{reason}: {waiting.get('message', '')}".rstrip(": ")
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"no node for it: {condition.get('message', '')}".rstrip(": ")
    return ""


def _state(pod: Mapping[str, Any], state: str) -> dict[str, Any]:
    # A pod that no node has taken yet has none.
    statuses = pod["status"].get("containerStatuses") or [{}]
    found: dict[str, Any] = statuses[0].get("state", {}).get(state)
    return found if found is not None else {}
