"""The names of `tf.estimator` and `tf.compat.v1.estimator`, loaded once per process."""

import importlib.metadata
from functools import partial
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from tfdist.estimator import versions

_MODULES = (
    "canned.baseline",
    "canned.dnn",
    "canned.dnn_linear_combined",
    "canned.kmeans",
    "canned.linear",
    "canned.parsing_utils",
    "canned.rnn",
    "early_stopping",
    "estimator",
    "export.export_lib",
    "exporter",
    "extenders",
    "head.base_head",
    "head.binary_class_head",
    "head.multi_class_head",
    "head.multi_head",
    "head.multi_label_head",
    "head.regression_head",
    "hooks.basic_session_run_hooks",
    "hooks.hooks",
    "hooks.session_run_hook",
    "inputs.inputs",
    "keras_lib",
    "mode_keys",
    "model_fn",
    "run_config",
    "training",
)


def _load() -> tuple[Any, Any, Any]:
    names = ("tensorflow-estimator", "tf_keras")
    versions.check(tf.__version__, {name: _installed(name) for name in names})
    # These modules import the packages that were just checked.
    from tfdist.estimator import _tf, guards, roles, session

    register = _tf.Register()
    _tf.load(register, roles, _MODULES)
    # Its base class is one of those loaded above.
    from tfdist.estimator.run_config import RunConfig

    register.replace("estimator.RunConfig", RunConfig)
    vars(_tf.module("run_config")).update(RunConfig=RunConfig)
    guards.install()
    _tf.replace(
        "estimator",
        "training",
        MonitoredTrainingSession=session.monitored_training_session,
    )
    convert = partial(_tf.module("keras_lib").model_to_estimator, use_v2_estimator=True)
    return _tree(register.names), _tree(register.names_v1), convert


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _tree(names: dict[str, Any]) -> Any:
    """Returns nested objects for dotted names such as `estimator.export.PredictOutput`."""
    root = SimpleNamespace()
    for name, symbol in names.items():
        _, *parents, last = name.split(".")
        node = root
        for parent in parents:
            node = vars(node).setdefault(parent, SimpleNamespace())
        setattr(node, last, symbol)
    return root


v2, v1, model_to_estimator = _load()
