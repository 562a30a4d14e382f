"""Arguments that all strategies take: whom to wait for, how long, and checkpoints."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, TypedDict, TypeVar

from tf_config import contract
from tf_config.commands import CONSOLE

Path = str | os.PathLike[str]


@dataclass
class Checkpoints:
    """The checkpoints from which `fit` continues when the program is started again.

    Args:
        directory: The directory to which the chief writes them, and each ps. Defaults to
            the environment variable TFDIST_CHECKPOINT_DIR, which `tfdist local
            --checkpoint_dir` sets; without either, there are no checkpoints.
        every: How often to begin a checkpoint, in seconds.
        keep: How many of the newest checkpoints to keep per `fit`.

    Raises:
        ValueError: If a number is not positive.
    """

    directory: Path | None = None
    every: float = 30.0
    keep: int = 3

    def __post_init__(self) -> None:
        # Not `<= 0`, which is false for NaN.
        if not self.every > 0:
            raise ValueError(
                "every, or checkpoint_interval, must be > 0 seconds; received "
                f"{self.every!r}"
            )
        if not (isinstance(self.keep, int) and self.keep > 0):
            raise ValueError(
                "keep, or checkpoints_to_keep, must be an integer > 0; received "
                f"{self.keep!r}"
            )


class JobArguments(TypedDict, total=False):
    """Arguments that all strategies take, by keyword.

    A strategy that cannot do what one of them asks for raises a `ValueError`.

    Attributes:
        startup_timeout: How long to wait for the other tasks, in seconds.
        peer_timeout: How long another task may fail to respond afterwards, in seconds.
            Defaults to 30, and to `stall_timeout` under `ParameterServerStrategy`.
        min_workers: How many workers are enough to continue, and under
            `ParameterServerStrategy` to start. Defaults to the environment variable
            TFDIST_MIN_WORKERS, which `tfdist local --min_workers` sets. Without it,
            `LocalUpdateStrategy` needs one worker, and the others need all.
        checkpoints: A `tfdist.Checkpoints`: where `fit` writes those from which it
            continues when the program is started again, how often, and how many it keeps.
        checkpoint_dir: Short for `checkpoints=tfdist.Checkpoints(checkpoint_dir)`.
        checkpoint_interval: Short for its `every`.
        checkpoints_to_keep: Short for its `keep`.
    """

    startup_timeout: float
    peer_timeout: float | None
    min_workers: int | None
    checkpoints: Checkpoints | None
    checkpoint_dir: Path | None
    checkpoint_interval: float | None
    checkpoints_to_keep: int | None


_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(JobArguments.__annotations__),
    "startup_timeout": 60.0,
}
_SHORT = {
    "checkpoint_dir": "directory",
    "checkpoint_interval": "every",
    "checkpoints_to_keep": "keep",
}

_OF_LAUNCHER = ("num_ps", "num_workers")

_Init = TypeVar("_Init", bound=Callable[..., None])


def takes_job_arguments(init: _Init) -> _Init:
    """Shows each of these arguments in the signature of a constructor with `**job`.

    A call with others raises a `TypeError` that says which there are.
    """
    signature = inspect.signature(init)
    *own, _ = signature.parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(name, kind, default=_DEFAULTS[name], annotation=annotation)
        for name, annotation in JobArguments.__annotations__.items()
    ]
    shown = signature.replace(parameters=[*own, *shared])

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            shown.bind(self, *args, **kwargs)
        except TypeError as error:
            names = [name for name in shown.parameters if name != "self"]
            words = wrong_arguments(str(error), names, kwargs)
            raise TypeError(f"{type(self).__name__} {words}") from None
        init(self, *args, **kwargs)

    checked.__signature__ = shown  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


def wrong_arguments(
    problem: str, names: Sequence[str], given: Mapping[str, object]
) -> str:
    """Returns the message about a call whose arguments do not fit.

    Args:
        problem: Python's words for it.
        names: The names of all arguments.
        given: The arguments that were given by name.

    >>> wrong_arguments("too many positional arguments", ["a", "b"], {})
    'cannot take these arguments (too many positional arguments). The arguments are a, b'
    """
    words = [f"cannot take these arguments ({problem})."]
    if unknown := [name for name in given if name not in names]:
        (name, *_) = unknown
        words = [f"has no argument {name!r}."]
        near = get_close_matches(name, [*names, *_OF_LAUNCHER], 1)
        if near and near[0] in _OF_LAUNCHER:
            flag = f"--{near[0]}={given[name]}"
            words += [f"The launcher starts the tasks: {CONSOLE} local {flag} SCRIPT."]
        elif near:
            words += [f"Did you mean: {near[0]}?"]
    return " ".join([*words, f"The arguments are {', '.join(names)}"])


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """Validated arguments that all strategies take, with defaults filled in.

    Attributes:
        who: The name of the strategy.
        min_workers: The number that was given; None if there was none.
    """

    who: str
    startup_timeout: float
    peer_timeout: float
    min_workers: int | None
    checkpoints: Checkpoints

    def need_all_workers(self, num_workers: int) -> None:
        """Checks that no number of workers but all is said to be enough.

        Raises:
            ValueError: If fewer are.
        """
        needed = min_workers_of(self.min_workers, num_workers, default=num_workers)
        if needed < num_workers:
            raise ValueError(
                f"{self.who} needs all of its {num_workers} workers in every step; "
                f"received min_workers={needed} (an argument, --min_workers of the "
                f"launcher, or {contract.MIN_WORKERS}). Leave it out, or use "
                "ParameterServerStrategy or LocalUpdateStrategy, which continue with "
                "fewer workers"
            )


def job_settings(
    who: str, given: JobArguments, peer_timeout: float = 30.0
) -> JobSettings:
    """Checks the arguments that all strategies take.

    Args:
        who: The name of the strategy.
        given: The arguments that were given.
        peer_timeout: The default of the argument of that name.

    Raises:
        TypeError: If one has another type.
        ValueError: If a number is not positive, or checkpoints are described twice.
    """
    job = {**_DEFAULTS, **given}
    if job["peer_timeout"] is None:
        job["peer_timeout"] = peer_timeout
    for name in ("startup_timeout", "peer_timeout"):
        if not job[name] > 0:
            raise ValueError(f"{name} must be > 0 seconds; received {job[name]!r}")
    return JobSettings(
        who=who,
        startup_timeout=job["startup_timeout"],
        peer_timeout=job["peer_timeout"],
        min_workers=job["min_workers"],
        checkpoints=_checkpoints_of(job),
    )


def _checkpoints_of(job: Mapping[str, Any]) -> Checkpoints:
    short = {name: job[name] for name in _SHORT if job[name] is not None}
    given = job["checkpoints"]
    if given is None:
        # A copy in any case, which nobody else changes.
        given = Checkpoints(**{_SHORT[name]: each for name, each in short.items()})
    elif not isinstance(given, Checkpoints):
        raise TypeError(
            f"checkpoints must be a tfdist.Checkpoints(directory); received {given!r}. "
            "For a directory alone, pass checkpoint_dir"
        )
    elif short:
        raise ValueError(
            f"checkpoints= and {', '.join(f'{name}=' for name in short)} describe the same "
            f"checkpoints; received both. Pass checkpoints={given!r} with what is missing "
            "there, or the short form alone"
        )
    return replace(
        given, directory=given.directory or os.environ.get(contract.CHECKPOINT_DIR)
    )


def min_workers_of(given: int | None, num_workers: int, default: int) -> int:
    """Returns how many workers are needed: as given, as the launcher says, or `default`."""
    text = os.environ.get(contract.MIN_WORKERS, "")
    received: object = text if given is None else given
    if given is None and not text:
        return default
    if given is None:
        number = int(text) if text.isdecimal() else 0
    else:
        number = given if type(given) is int else 0
    if not 1 <= number <= num_workers:
        name = contract.MIN_WORKERS if given is None else "min_workers"
        raise ValueError(
            f"{name} must be an integer from 1 to {num_workers}, the number of workers "
            f"in the cluster; received {received!r}"
        )
    return number
