"""An Estimator on four devices of one process, with our ring between them."""

import json

import pytest


def test_four_devices_train_as_one_with_the_whole_batch(run_program):
    done = run_program("estimator_mirrored.py")
    assert done.returncode == 0, done.stderr
    four, one, ring_calls, unasked = json.loads(done.stdout.splitlines()[-1])
    assert four[0] == pytest.approx(one[0], rel=1e-5)
    assert four[1] == pytest.approx(one[1], rel=1e-4)
    assert any(one[0])
    assert ring_calls > 0
    # TensorFlow's own choice waits forever, in a session.
    assert unasked[0] == pytest.approx(one[0], rel=1e-5)
