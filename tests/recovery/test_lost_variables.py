"""Variables made before a strategy connects to a cluster are told as lost."""

import keras

from tfdist.cluster.lost_variables import tell_of_lost_variables


def test_variables_of_a_model_are_told(caplog):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2, name="made_before")]
    )
    tell_of_lost_variables("PipelineStrategy")
    (record,) = caplog.records
    assert "made before PipelineStrategy, such as " in record.getMessage()
    assert "get_weights()" in record.getMessage()
    assert len(model.weights) == 2


DELETED = """
import keras
from tfdist.cluster.lost_variables import tell_of_lost_variables
keras.utils.set_random_seed(0)
tell_of_lost_variables("RingStrategy")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
del model
tell_of_lost_variables("RingStrategy")
"""


def test_nothing_is_told_of_what_nobody_has_anymore(run_python):
    result = run_python(DELETED)
    assert result.returncode == 0, result.stderr
    assert "are lost" not in result.stderr
