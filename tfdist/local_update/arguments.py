"""Checks the arguments of `LocalUpdateStrategy`."""

import zlib
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import keras

from tf_config.contract import CHECKPOINT_DIR
from tfdist.cluster.settings import Checkpoints
from tfdist.local_update.mixing import Gossip, Mean, Mixing


def checked_local_steps(local_steps: Any) -> int:
    """Returns a valid number of local steps: 1 or more."""
    what = "local_steps is how many steps each worker takes between mixes"
    count = _integer(local_steps, what)
    if count < 1:
        raise ValueError(
            f"{what}, 1 or more; received {count}. With 1, models are mixed after every "
            "step"
        )
    return count


def check_no_checkpoints(checkpoints: Checkpoints) -> None:
    """Checks that nobody asks for checkpoints."""
    if checkpoints != Checkpoints():
        raise ValueError(
            f"LocalUpdateStrategy writes no checkpoints; received {checkpoints} (its "
            "arguments, --checkpoint_dir of the launcher, or "
            f"{CHECKPOINT_DIR}): leave that out. With --min_workers, the others train on "
            "without a lost worker, and one that is started again takes part again"
        )


def checked_mixing(mixing: Any, workers: int) -> Mixing:
    """Returns the policy for a number of workers."""
    if isinstance(mixing, type) or not isinstance(mixing, Mixing):
        raise TypeError(
            "mixing must be tfdist.mixing.Mean(), tfdist.mixing.Gossip(topology), or "
            "an object with their methods `on` and `weights` (tfdist.mixing.Mixing); "
            f"received {mixing!r}"
        )
    return mixing.on(workers)


def checked_outer_optimizer(
    outer_optimizer: Any, mixing: Mixing
) -> keras.optimizers.Optimizer | None:
    """Returns a Keras optimizer, or None.

    Raises:
        TypeError: If it is neither.
        ValueError: If models are not mixed to the same one on all workers.
    """
    if outer_optimizer is None:
        return None
    if not isinstance(outer_optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "outer_optimizer is a Keras optimizer, such as keras.optimizers.SGD(0.7, "
            f"momentum=0.9, nesterov=True), or None; received {outer_optimizer!r}"
        )
    if isinstance(mixing, Gossip) or not isinstance(mixing, Mean):
        raise ValueError(
            "outer_optimizer needs mixing=tfdist.mixing.Mean(): all workers take the "
            f"same outer step from the same mean; received {mixing!r}"
        )
    return outer_optimizer


def checked_overlap(overlap: Any) -> bool:
    """Returns True if mixes overlap with local steps."""
    if not isinstance(overlap, bool):
        raise TypeError(
            "overlap is True to mix models during the next local steps, or False to wait "
            f"for each mix; received {overlap!r}"
        )
    return overlap


def checked_fragments(fragments: Any, overlap: bool, local_steps: int) -> int:
    """Returns a number of fragments: 1 to `local_steps`, and 1 without `overlap`."""
    count = _integer(fragments, "fragments is in how many parts a model is mixed")
    if not 1 <= count <= local_steps:
        raise ValueError(
            "fragments must be from 1 to local_steps, as each is mixed after a step of "
            f"its own: 1 to {local_steps} here; received {count}"
        )
    if count > 1 and not overlap:
        raise ValueError(
            "fragments travel one after the other while steps run: pass overlap=True with "
            f"fragments={count}, or leave fragments out to wait for the whole model"
        )
    return count


def described(mixing: Mixing, present: Sequence[int]) -> str:
    """Describes a policy, with a digest of its weights in the first two rounds."""
    weights = [
        sorted(mixing.weights(each, round_index, present).items())
        for round_index in range(2)  # A graph may have other weights in the next one.
        for each in present
    ]
    digest = zlib.crc32(repr(weights).encode())
    return f"{type(mixing).__name__} with weights {digest:08x}"


def check_not_inner(
    outer_optimizer: keras.Optimizer | None, model: keras.Model
) -> None:
    """Checks that a model is not compiled with the outer optimizer."""
    if outer_optimizer is not None and model.optimizer is outer_optimizer:
        raise ValueError(
            f"{model.name!r} is compiled with the strategy's outer_optimizer itself. The "
            "inner optimizer takes the local steps, and the outer one a step per mix: "
            "make two, such as keras.optimizers.AdamW() and keras.optimizers.SGD(0.7, "
            "momentum=0.9, nesterov=True)"
        )


def check_no_own_average(model: keras.Model) -> None:
    """Checks that no worker ends with an average of its own weights."""
    if model.optimizer is not None and model.optimizer.use_ema:
        raise ValueError(
            f"{model.name!r} is compiled with use_ema=True: at the end of fit, each worker "
            "would put the moving average of its own weights in place of the mean of all "
            "models. Compile it with use_ema=False"
        )


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{what}, an integer of 1 or more; received {value!r}")
    return int(value)
