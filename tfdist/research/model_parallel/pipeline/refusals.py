"""Checks before the first step for what a pipeline cannot train."""

import keras

from tfdist import _tf
from tfdist.keras import refused
from tfdist.keras.optimizers import is_by_element, is_overridden, with_wrapped
from tfdist.research.model_parallel.pipeline.errors import PipelineError
from tfdist.research.model_parallel.splitting.nodes import pieces_of
from tfdist.synchronous.fit.refusals import check_optimizer

_LAYERS = {
    refused.STATEFUL: "its state has one row per example of a batch, but each microbatch "
    "has only some of the examples",
    refused.FLOAT8: "its scales depend on all examples, but each microbatch has only some",
}
_STALE = (refused.LOSS_SCALE, refused.ACCUMULATION, refused.GLOBAL_NORM)
_TOGETHER = "max_staleness must be 0, because otherwise stages compute different batches in a step"
_OWN = ("train_step", "test_step", "predict_step", "compute_loss")


def check(model: keras.Model, *needed: str) -> None:
    """Refuses a model whose computation a pipeline would change.

    `needed` are the methods that steps in stages would replace; all of them by default.
    """
    if _tf.functional_of(model) is None and not isinstance(model, keras.Sequential):
        raise unknown_graph(model)
    _check_inputs(model)
    for name in needed or _OWN:
        if is_overridden(model, name):
            raise PipelineError(
                f"the model {model.name!r} has its own {name}, which a pipeline cannot "
                "divide into stages: it trains the graph of layers with the compiled loss "
                "and optimizer. Remove it, or use another strategy, such as RingStrategy"
            )
    if getattr(model, "compiled", False):
        _check_compiled(model)
    for layer in _tf.flatten_layers(model):
        refused.check(layer, _LAYERS, PipelineError)


def check_stale(model: keras.Model) -> None:
    """Refuses optimizers that count on the gradients of one batch at a time."""
    refused.check(model.optimizer, dict.fromkeys(_STALE, _TOGETHER), PipelineError)


def _check_inputs(model: keras.Model) -> None:
    for each in getattr(_tf.functional_of(model), "inputs", ()):
        if each.shape[0] is not None:
            raise PipelineError(
                f"the input {each.name!r} of model {model.name!r} has a fixed number of "
                f"rows, {each.shape[0]}, but a microbatch has fewer. Leave batch_size out "
                "of keras.Input"
            )


def unknown_graph(model: keras.Model) -> PipelineError:
    """Returns the error for a model whose graph of layers is not known."""
    if (
        isinstance(model, keras.Sequential)
        and type(model).call is keras.Sequential.call
    ):
        return PipelineError(
            f"the model {model.name!r} cannot be cut into stages, since its graph of "
            "layers is not known. Begin it with keras.Input(shape)"
        )
    return PipelineError(
        f"the model {model.name!r}, a {type(model).__name__}, has a call method of its "
        "own, so that its graph of layers is not known and cannot be cut into stages. "
        "Build it from keras.Input(shape) to keras.Model(inputs, outputs); layers of your "
        "own count as one each"
    )


def _check_compiled(model: keras.Model) -> None:
    if model.run_eagerly:
        raise PipelineError(
            "run_eagerly=True would compute one stage after the other, in Python. Compile "
            "the model with run_eagerly=False, or debug it without the strategy first"
        )
    if model.jit_compile:
        raise PipelineError(
            "jit_compile=True compiles a step for one device, but a pipeline's step spans "
            "several. Compile the model with jit_compile=False"
        )
    check_optimizer(model)
    _check_split(model)


def _check_split(model: keras.Model) -> None:
    split = [each.name for each in model.layers if pieces_of(each)]
    if not split:
        return
    for optimizer in with_wrapped(model.optimizer):
        if optimizer.clipnorm:
            what = "has clipnorm, the norm of each weight's gradient"
        elif not is_by_element(optimizer):
            what = "may update a weight by what all of its numbers have in common"
        else:
            continue
        raise PipelineError(
            f"the optimizer {optimizer.name!r} {what}, but the weights of "
            f"{', '.join(split)} are split, and each part would have its own. Take "
            "global_clipnorm, or an optimizer that updates each number by itself, such as "
            "Adam, or leave the layers whole"
        )
