"""Reads TF_CONFIG strictly: the cluster, and this process's task in it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tf_config import contract
from tf_config.cluster import Cluster, Task
from tf_config.errors import ClusterError, check_name, show

_KEYS = ("cluster", "task")
_TASK_KEYS = ("type", "index")

# Schedulers and older versions of TensorFlow add these keys. They do not affect the tasks
# of the cluster, so they are accepted and dropped.
_IGNORED_KEYS = (
    "environment",
    "eval_session_master",
    "job",
    "model_dir",
    "rpc_layer",
    "service",
    "session_master",
)
_IGNORED_TASK_KEYS = ("cloud", "trial")


@dataclass(frozen=True)
class TFConfig:
    """A cluster, and the task of this process.

    An evaluator need not be in the cluster: TensorFlow keeps it outside.

    >>> config = TFConfig(Cluster.from_hosts(worker="a:1,b:1"), Task("worker", 0))
    >>> config.to_json()
    '{"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":0}}'
    >>> TFConfig.from_json(config.to_json()) == config
    True

    Raises:
        ClusterError: If the task is not in the cluster.
    """

    cluster: Cluster
    task: Task

    def __post_init__(self) -> None:
        if self.task.job != "evaluator":
            self.cluster.address(self.task)
        elif self.task.index != 0:
            raise ClusterError(
                f"the only evaluator is evaluator:0; received {self.task}"
            )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "TFConfig":
        """Reads TF_CONFIG from `environ`, by default `os.environ`.

        Raises:
            ClusterError: If TF_CONFIG is unset, empty or invalid.
        """
        text = (os.environ if environ is None else environ).get(contract.TF_CONFIG)
        if text is None or not text.strip():
            raise ClusterError(
                f"TF_CONFIG is {'not set' if text is None else 'empty'}: start the "
                "program with python -m launch.task, which sets it, or set it on each "
                "host, for example with export TF_CONFIG=$(python -m tf_config "
                "--worker_hosts=a:2222,b:2222 --job_name=worker --task_index=0)"
            )
        return cls.from_json(text)

    @classmethod
    def from_json(cls, text: str) -> "TFConfig":
        """Reads the JSON text of a TF_CONFIG.

        Raises:
            ClusterError: If the text is not JSON, or not a valid TF_CONFIG.
        """
        try:
            value = json.loads(
                text,
                object_pairs_hook=_object_without_duplicates,
                parse_constant=_refuse_constant,
            )
        except json.JSONDecodeError as error:
            raise ClusterError(_explain(error)) from None
        except ClusterError:
            raise
        except (RecursionError, ValueError) as error:
            # Nested too deeply, or a number with too many digits.
            raise ClusterError(f"TF_CONFIG cannot be read: {error}") from None
        return cls.from_dict(value)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TFConfig":
        """Reads the decoded JSON of a TF_CONFIG.

        Raises:
            ClusterError: If the value is not a valid TF_CONFIG.
        """
        _check_keys(contract.TF_CONFIG, value, _KEYS, _IGNORED_KEYS)
        task = value["task"]
        _check_keys("the task of TF_CONFIG", task, _TASK_KEYS, _IGNORED_TASK_KEYS)
        return cls(
            Cluster.from_dict(value["cluster"]), Task(task["type"], task["index"])
        )

    def to_json(self) -> str:
        """Returns the TF_CONFIG that TensorFlow reads, on one line without spaces.

        The evaluator is left out of the cluster (see `Cluster.cluster_spec`).
        """
        task = {"type": self.task.job, "index": self.task.index}
        value = {"cluster": self.cluster.cluster_spec(), "task": task}
        # Without spaces, an unquoted $(python -m tf_config ...) stays one word.
        return json.dumps(value, separators=(",", ":"))


def _check_keys(
    where: str, value: Any, required: tuple[str, ...], ignored: tuple[str, ...]
) -> None:
    example = ", ".join(f'"{key}": ...' for key in required)
    if not isinstance(value, Mapping):
        raise ClusterError(
            f"{where} is an object {{{example}}}; received {show(value)}"
        )
    for key in value:
        if key not in ignored:
            check_name(f"key of {where}:", key, required)
    for key in required:
        if key not in value:
            raise ClusterError(
                f'{where} has no "{key}": write {{{example}}}; received {show(value)}'
            )


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ClusterError(f"TF_CONFIG has the key {show(key)} twice: keep one")
        value[key] = item
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ClusterError(f"TF_CONFIG contains {name}, which is not JSON")


def _explain(error: json.JSONDecodeError, width: int = 60) -> str:
    """Shows where the JSON is malformed, with a caret under the place."""
    line = error.doc.split("\n")[error.lineno - 1]
    start = max(0, error.colno - 1 - width // 2)
    excerpt = line[start : start + width]
    # A tab, or a terminal's control code, would move the caret.
    visible = "".join(char if char.isprintable() else "?" for char in excerpt)
    return (
        f"TF_CONFIG is not JSON: {error.msg} at line {error.lineno}, "
        f"column {error.colno}\n"
        f"  {visible}\n"
        f"  {' ' * (error.colno - 1 - start)}^\n"
        "write every name and string in double quotes, without a trailing comma; in a "
        "shell, put the whole text in single quotes"
    )
