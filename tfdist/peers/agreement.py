"""Checks before training that all workers have the same model and the same data.

Each worker runs the script in its own process. Where the script draws random numbers
without a seed, a shuffled list of files differs, or a vocabulary learned from them.
Training would continue without an error, to worse results.
"""

import json
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist import _tf
from tfdist._support.errors import Error
from tfdist.peers import adapted, checksums
from tfdist.peers.checksums import Checksums
from tfdist.peers.peers import Peers
from tfdist.peers.shares import UnequalDataError, is_own_data
from tfdist.peers.shuffle import with_agreed_seeds

_log = logging.getLogger("tfdist")
_checked: "weakref.WeakSet[Any]" = weakref.WeakSet()
_FIRST_ELEMENTS = 8
_DATA = ("x", "y", "sample_weight", "validation_data")
_NUMBERS = (
    "batch_size",
    "class_weight",
    "epochs",
    "initial_epoch",
    "shuffle",
    "steps_per_epoch",
    "validation_batch_size",
    "validation_freq",
    "validation_split",
    "validation_steps",
)
_ADVICE = (
    "Every worker runs the script: set the same seed on all of them "
    "(keras.utils.set_random_seed at the start), and read the same files in the "
    "same order"
)


class UnequalModelError(Error, ValueError):
    """The workers build different models, or call `fit` with different arguments."""


def check_model(model: keras.Model, peers: Peers) -> None:
    """Checks once per model that it is the same on all workers.

    Cost: each worker reads its tables once, and exchanges one number.

    Raises:
        UnequalModelError: If it is not. Names what differs, and on which workers.
    """
    if peers.num_workers == 1 or model in _checked:
        return
    differing = _differing(checksums.of_model(model), peers)
    if differing and adapted.take_the_chiefs(model, peers):
        differing = _differing(checksums.of_model(model), peers)
    if differing:
        raise UnequalModelError(f"the workers differ in {differing}. {_ADVICE}")
    _checked.add(model)


def check_settings(settings: Mapping[str, Any], peers: Peers) -> None:
    """Checks that all workers have made their strategy with the same arguments."""
    mine = {name: checksums.of_values(name, each) for name, each in settings.items()}
    if differing := _differing(mine, peers):
        raise UnequalModelError(
            f"the workers have strategies with different {differing}. Make them with the "
            "same arguments on every worker"
        )


def check_updates(
    mine: dict[str, str], peers: Peers, gather: Callable[[int], list[int]]
) -> None:
    """Checks that all workers have the same `checksums.of_updates`.

    Cost: that of `gather`, which exchanges one number.

    Raises:
        UnequalModelError: If they have not. Names the value of each worker.
    """
    if len(set(gather(checksums.of_values("", mine)))) == 1:
        return
    texts = peers.gather_texts(json.dumps(mine))
    differing = values_of_each({name: json.loads(of) for name, of in texts.items()})
    raise UnequalModelError(
        f"a callback has changed how some workers update the model: {differing}. The "
        "step exchanges gradients only, so that the weights part. Give the callback to "
        "every worker: all of them see the same logs"
    )


def values_of_each(found: Mapping[str, Mapping[str, str]]) -> str:
    """Returns the items that differ between workers, and the value of each.

    >>> values_of_each({"a:0": {"rate": "1"}, "a:1": {"rate": "2"}, "a:2": {"rate": "1"}})
    'rate is 1 on a:0, a:2, but 2 on a:1'
    """
    words = []
    for name in dict.fromkeys(name for each in found.values() for name in each):
        on: dict[str, list[str]] = {}
        for worker, of_worker in found.items():
            on.setdefault(of_worker.get(name, "missing"), []).append(worker)
        if len(on) > 1:
            parts = [f"{value} on {', '.join(names)}" for value, names in on.items()]
            words.append(f"{name} is {', but '.join(parts)}")
    return "; ".join(words[:5])


def check_arguments(arguments: Mapping[str, Any], peers: Peers) -> None:
    """Checks the arguments of `fit`: numbers, arrays, and first batches of datasets.

    Cost: each worker reads at most 64 MiB of each array, and the first batch of each
    dataset that it has not read before; of one that draws at random, the first 8 elements
    of what it draws from.

    Raises:
        UnequalModelError: If numbers differ, such as the number of epochs.
        UnequalDataError: If the data from which each worker takes its rows differs.
    """
    if peers.num_workers == 1:
        return
    numbers = {
        name: checksums.of_values(name, arguments[name])
        for name in _NUMBERS
        if name in arguments
    }
    if differing := _differing(numbers, peers):
        raise UnequalModelError(
            f"fit was called with different {differing}. Call it with the same "
            "arguments on every worker"
        )
    found: Checksums = {}
    uncertain = False
    for name in _DATA:
        of_data, may_differ = _of_data(name, arguments.get(name))
        found |= of_data
        uncertain |= may_differ
    differing = _differing(found, peers, all_of_them=uncertain)
    if differing:
        data = map(arguments.get, _DATA)
        # A program may catch this, and call `fit` again.
        _checked.difference_update(d for d in data if isinstance(d, tf.data.Dataset))
        raise UnequalDataError(
            f"the workers were given different data: {differing}. Each takes its own "
            f"rows of the same batches. {_ADVICE}; or, if each worker has its own "
            "dataset, set AutoShardPolicy.OFF in its options"
        )


def _of_data(name: str, value: Any) -> tuple[Checksums, bool]:
    """Returns checksums of an argument, and whether reading it twice may differ."""
    if isinstance(value, tf.data.Dataset):
        return _of_dataset(name, value)
    if isinstance(value, keras.utils.PyDataset):
        if value.num_batches is None:
            return {}, False
        return checksums.of_tensors(f"{name}, its first batch", value[0]), True
    if name == "validation_data" and isinstance(value, tuple):
        return checksums.of_tensors(name, value), False
    leaves = keras.tree.flatten(value)
    arrays = all(hasattr(each, "__array__") for each in leaves if each is not None)
    return (checksums.of_tensors(name, value) if arrays else {}), False


def _of_dataset(name: str, dataset: tf.data.Dataset) -> tuple[Checksums, bool]:
    if dataset in _checked or is_own_data(dataset):
        return {}, False
    _checked.add(dataset)
    if not _tf.draws_at_random(dataset):
        (batch,) = _first(dataset, 1) or [None]
        return checksums.of_tensors(f"{name}, its first batch", batch), False
    # Draws of several threads have no agreed seed, so their inputs are compared.
    parts = _tf.parts_before_draws(dataset)
    if parts:
        first = [_first(part, _FIRST_ELEMENTS) for part in parts]
        return checksums.of_tensors(f"{name}, before it is random", first), False
    # Nor has what Python makes.
    (batch,) = _first(dataset, 1) or [None]
    return checksums.of_tensors(f"{name}, its first batch", batch), True


def _first(dataset: tf.data.Dataset, count: int) -> list[Any]:
    if _tf.random_seeds(dataset):
        # Otherwise each worker would start with different examples.
        dataset = with_agreed_seeds(dataset, seed=0)
    return list(dataset.take(count))


def _differing(mine: Checksums, peers: Peers, all_of_them: bool = False) -> str:
    """Returns the item that differs, and on which workers; '' if nothing does.

    With `all_of_them`, a difference counts only if all checksums differ: random
    augmentation changes an example, but not its target.
    """
    gather = peers.gather_numbers
    # One number first: names and checksums are exchanged only if it differs.
    total = checksums.of_values("", sorted(mine.items()))
    if len(set(gather([total])[:, 0].tolist())) == 1:
        return ""
    texts = peers.gather_texts(json.dumps(mine))
    names = list(texts)
    chiefs, *others = [json.loads(text) for text in texts.values()]
    on: dict[str, list[int]] = {}
    for worker, theirs in enumerate(others, start=1):
        for name in {**chiefs, **theirs}:
            if chiefs.get(name) != theirs.get(name):
                on.setdefault(name, []).append(worker)
    if all_of_them and (len(on) < len(chiefs) or len(chiefs) == 1):
        return ""
    return "; ".join(
        f"{name} (on {', '.join(names[i] for i in workers)}, against {names[0]})"
        for name, workers in list(on.items())[:5]
    )
