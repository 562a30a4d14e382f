"""What crosses between devices in a training step, tensor by tensor.

Three logical devices stand in for a worker and two ps. TensorFlow's own trace says
which tensors it sends between them, and how large they were.
"""

import json

import pytest


@pytest.fixture(scope="module")
def traces(run_program):
    done = run_program("embedding_step_trace.py")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_cost_model_is_exact(traces):
    for trace in traces:
        sent = {
            route: sum(tensor["bytes"] for tensor in tensors)
            for route, tensors in trace["sent"].items()
        }
        assert sent == trace["model"], (trace["ids"], trace["weighted"])


def test_the_choice_is_never_worse_and_at_times_better_than_both(traces):
    gains = []
    for trace in traces:
        model = trace["model"]
        better = min(model["plain"], model["aggregated"])
        assert model["chosen"] <= better
        gains.append(better - model["chosen"])
    assert max(gains) > 0


def test_a_block_and_its_gradient_are_all_floats_that_cross(traces):
    """The rows and their gradient stay on the ps."""
    for trace in traces:
        for route, tensors in trace["sent"].items():
            tensors = [tensor for tensor in tensors if tensor["bytes"]]
            blocks = [tensor for tensor in tensors if len(tensor["shape"]) == 2]
            for ps in (1, 2):
                (down,) = (each["shape"] for each in blocks if each["from"] == ps)
                (up,) = (each["shape"] for each in blocks if each["to"] == ps)
                assert down == up
                if route == "aggregated":
                    assert down[0] <= 16
            others = [tensor for tensor in tensors if tensor not in blocks]
            assert {each["from"] for each in others} == {0}
