"""The other end of namespace_cluster.py: a program that answers requests."""

import json
import sys
from collections.abc import Callable
from typing import Any


def serve(make_bench: Callable[[], Any]) -> None:
    """Answers each line of standard input with a line, both of JSON, until the input ends.

    A request names a method of the bench in `do`; the rest are its arguments. The first
    line says that the bench is made.
    """
    # Whatever TensorFlow and Keras print is no answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    bench = make_bench()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(bench, request.pop("do"))(**request)
        print(json.dumps(answer or {}), file=answers, flush=True)
