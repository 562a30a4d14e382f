"""The program of a worker of `launch.ray.Executor`, in its own process.

The actor is sent to its node as it is, so this file imports the standard library alone.
"""

import contextlib
import os
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Rank:
    """One worker: functions of the user run in its process, one after the other."""

    def __init__(self) -> None:
        self._executable: Any = None

    def where(self, ports: Sequence[int]) -> dict[str, Any]:
        """Returns the `address` of the node, a free `port`, and its `proxies`."""
        import ray

        return {
            "address": ray.util.get_node_ip_address(),
            "port": next(filter(_is_free, ports), None),
            "proxies": {
                k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")
            },
        }

    def set_environment(self, env: Mapping[str, str]) -> None:
        """Sets variables for all that follows."""
        os.environ.update(env)

    def build(self, pickled: bytes) -> tuple[bytes, str]:
        """Makes the object that stays, of a class and its arguments."""

        def make(
            cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
        ) -> None:
            self._executable = cls(*args, **kwargs)

        return _call(make, pickled)

    def run(self, pickled: bytes) -> tuple[bytes, str]:
        """Calls a function with its arguments; see `_call`."""
        return _call(
            lambda function, args, kwargs: function(*args, **kwargs),
            pickled,
        )

    def execute(self, pickled: bytes) -> tuple[bytes, str]:
        """Calls a function with the object that stays; see `_call`."""
        return _call(lambda function: function(self._executable), pickled)


def _call(how: Callable[..., Any], pickled: bytes) -> tuple[bytes, str]:
    """Returns a result, or an exception and its stack; the result's stack is ''."""
    from ray import cloudpickle

    try:
        return cloudpickle.dumps(how(*cloudpickle.loads(pickled))), ""
    except BaseException as error:  # sys.exit would end the worker.
        # The frames of this file say nothing about the user's.
        stack = error.__traceback__
        while stack and stack.tb_frame.f_code.co_filename == __file__:
            stack = stack.tb_next
        text = "".join(traceback.format_exception(type(error), error, stack))
        try:
            return cloudpickle.dumps(error.with_traceback(None)), text
        except Exception:
            return cloudpickle.dumps(None), text


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("", port))
        return True
    return False
