"""What a contender's program and peers.py tell each other.

peers.py starts every process with a `Task` in the environment. Those that lead a part of
the training (each worker, or the chief) answer its requests over a socket, one JSON object
per line. Only the standard library and NumPy: every environment has them.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

TASK = "PEERS_TASK"


@dataclass(frozen=True)
class Task:
    """One process of a contender.

    Attributes:
        job: `chief`, `ps` or `worker`.
        index: Counts from 0 within the job.
        ps: The address of each ps.
        workers: The address of each worker.
        data: An .npz file that `data.py` reads.
        model: `mlp`, `cnn` or `recommender`.
        optimizer: `sgd`, `adam` or `adagrad`.
        batch_size: Examples per step.
        learning_rate: Of the optimizer.
        socket: The file descriptor of its connection with peers.py; None if it has none.
        options: What distinguishes this contender from others with the same program.
    """

    job: str
    index: int
    ps: tuple[str, ...]
    workers: tuple[str, ...]
    data: str
    model: str
    optimizer: str
    batch_size: int
    learning_rate: float
    socket: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_environment(cls) -> "Task":
        """Returns the task of this process."""
        value = json.loads(os.environ[TASK])
        ps, workers = tuple(value.pop("ps")), tuple(value.pop("workers"))
        return cls(ps=ps, workers=workers, **value)

    def to_json(self) -> str:
        """Returns the task as JSON, for the environment of its process."""
        return json.dumps(asdict(self))


class Control:
    """The program's end of the connection with peers.py.

    Args:
        task: The task of this process, which has a socket.
    """

    def __init__(self, task: Task) -> None:
        self._lines = socket.socket(fileno=task.socket).makefile("rw")

    def receive(self) -> dict[str, Any] | None:
        """Waits for a request, without using the CPU; None means that peers.py is gone."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def send(self, **answer: Any) -> None:
        """Answers the last request, or says that the program is ready."""
        self._lines.write(json.dumps(answer) + "\n")
        self._lines.flush()


def serve(
    task: Task,
    train: Callable[[int], None],
    predict: Callable[..., np.ndarray],
    count: Callable[[], int | None] = lambda: None,
    prepare: Callable[[int], None] = lambda steps: None,
) -> None:
    """Answers the requests of peers.py until it closes the connection.

    Args:
        task: The task of this process.
        train: Trains a number of steps, and returns when all of them have finished.
        predict: Returns the logits of a batch of images, or other inputs, with the current weights.
        count: Returns the updates that the servers have counted.
        prepare: Is told the number of steps before the clock starts.
    """
    from peer_programs.data import data_of

    control = Control(task)
    control.send(pid=os.getpid())
    while (request := control.receive()) is not None:
        if steps := request.get("train"):
            prepare(steps)
            started = time.perf_counter()
            train(steps)
            control.send(seconds=time.perf_counter() - started)
        else:
            score = data_of(task).score(predict)
            control.send(**score._asdict(), iterations=count())
