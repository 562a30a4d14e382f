"""A job whose script keeps TensorFlow's own strategy ends with the name of ours."""

import pytest

from launch.console.keras_output import KerasFit

from ..launch_programs.launcher import Launcher

USER = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    {call}
"""
KERAS = """\
  File "/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 122, in e
    raise e.with_traceback(filtered_tb) from None
"""
WORKERS = """\
  File "/lib/python3.11/site-packages/tensorflow/python/framework/constant_op.py", line 1
    return ops.EagerTensor(value, ctx.device_name, dtype)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: Attempt to convert a value (PerReplica:{
  0: <tf.Tensor: shape=(32, 8), dtype=float32, numpy=
array([[ 0.2571812 ,  0.20488472]], dtype=float32)>
}) with an unsupported type (<class 'PerReplica'>) to a Tensor.
"""
PS = """\
  File "/lib/python3.11/site-packages/tensorflow/python/distribute/input_lib.py", line 98
    raise ValueError("To use this dataset, you need to pass this dataset to "
ValueError: To use this dataset, you need to pass this dataset to \
ClusterCoordinator.create_per_worker_dataset.
"""


def advice(text):
    found = KerasFit()
    for line in text.splitlines():
        # What another task prints meanwhile ends no traceback.
        found.hear("worker:0", line)
        found.hear("worker:1", "Epoch 1/2")
    return found.advice


@pytest.mark.parametrize(
    "call", ["net.fit(x, epochs=2)", "a = m.evaluate(", "m.predict(x)"]
)
@pytest.mark.parametrize(
    ("error", "name"),
    [(WORKERS, "MultiWorkerMirroredStrategy"), (PS, "ParameterServerStrategy")],
)
def test_the_class_to_use_is_named(call, error, name):
    text = f"Epoch 1/2\n{USER.format(call=call)}{KERAS}{error}"
    assert advice(text) == (
        f"fit, evaluate and predict of Keras 3 do not run on tf.distribute.{name}: let the "
        f"script use tfdist.{name}() in its place"
    )


@pytest.mark.parametrize(
    "text",
    [
        # A custom loop that gives a model the batches of all replicas.
        USER.format(call="logits = model(batch)") + KERAS + WORKERS,
        # One that iterates over a dataset by itself.
        USER.format(call="for batch in dataset:") + PS,
        # An Estimator, or Keras 2.
        USER.format(call="classifier.evaluate(input_fn)") + WORKERS,
        USER.format(call="model.fit(x)") + KERAS + "ValueError: shapes differ",
        USER.format(call="model.fit(x)") + KERAS + "KeyboardInterrupt\n" + PS,
        WORKERS + PS,
    ],
)
def test_other_errors_are_left_alone(text):
    assert advice(text) == ""


@pytest.mark.parametrize("status", [1, 0])
def test_the_sentence_ends_a_job_that_failed(tmp_path, status):
    text = USER.format(call="model.fit(x)") + KERAS + PS
    with Launcher(tmp_path) as launcher:
        script = launcher.script(f"print({text!r})\nraise SystemExit({status})")
        _, _, errors = launcher.run("--num_ps=0", "--num_workers=1", script)
    said = "let the script use tfdist.ParameterServerStrategy() in its place"
    assert errors.strip().endswith(said) == bool(status)
