"""A server or a worker of PaddlePaddle's asynchronous parameter servers (`a_sync`).

Workers train with `train_from_dataset`: `Executor.run` in this mode pushes gradients and
never pulls a weight.
"""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.ps_util import DistributedInfer
from peer_programs.clicks import INITIAL_RANGE, ROWS, WIDTH
from peer_programs.control import Task, serve
from peer_programs.data import data_of, initial_weights

_STEPS_PER_FILE = 100


_NAMES = "abcdef"
_IDS = ("user", "tags")
_TABLES = ("user_rows", "tags_rows")


def _inputs(model: str) -> list[paddle.static.Variable]:
    data = paddle.static.data
    if model != "recommender":
        return [data("images", [None, 784], "float32")]
    return [data(name, [None, 1], "int64", lod_level=1) for name in _IDS]


def _logits(model: str, inputs: list[paddle.static.Variable]) -> paddle.static.Variable:
    weights = initial_weights(model)
    static = paddle.static.nn
    hidden, names = inputs[0], iter(_NAMES)
    if model == "recommender":
        hidden = paddle.concat([_means(each) for each in inputs], axis=1)
    elif model == "cnn":
        hidden = paddle.reshape(hidden, [-1, 1, 28, 28])
        for kernel in (weights[0], weights[2]):
            hidden = static.conv2d(
                hidden,
                kernel.shape[-1],
                5,
                act="relu",
                param_attr=next(names),
                bias_attr=next(names),
            )
            hidden = paddle.nn.functional.max_pool2d(hidden, 2, 2)
        hidden = paddle.flatten(hidden, 1)
        weights = weights[4:]
    for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
        last = kernel.shape[-1] == len(weights[-1]) and bias is weights[-1]
        hidden = static.fc(
            hidden,
            kernel.shape[-1],
            activation=None if last else "relu",
            weight_attr=next(names),
            bias_attr=next(names),
        )
    return hidden


def _means(ids: paddle.static.Variable) -> paddle.static.Variable:
    """Returns the mean of the rows of each bag of ids, from a table on the servers."""
    initial = paddle.nn.initializer.Uniform(-INITIAL_RANGE, INITIAL_RANGE)
    rows = paddle.static.nn.sparse_embedding(
        ids,
        [ROWS, WIDTH],
        param_attr=paddle.ParamAttr(f"{ids.name}_rows", initializer=initial),
    )
    return paddle.static.nn.sequence_lod.sequence_pool(rows, "average")


def _sgd_on_rows(task: Task) -> dict[str, dict[str, Any]]:
    """Returns the options by which servers update rows as SGD does."""
    configs = {}
    for table in _TABLES:
        options: dict[str, Any] = {"accessor_class": "SparseAccessor"}
        # The first number of a row has a rule of its own.
        for rule in ("embed_sgd_param", "embedx_sgd_param"):
            options[f"{rule}.name"] = "SparseNaiveSGDRule"
            # A worker multiplies the gradient of a mean by the size of the batch.
            options[f"{rule}.naive.learning_rate"] = (
                task.learning_rate / task.batch_size
            )
            options[f"{rule}.naive.initial_range"] = INITIAL_RANGE
        prefix = f"table_parameters.{table}"
        configs[table] = {
            f"{prefix}.accessor.{name}": each for name, each in options.items()
        }
        # One part per server. With 1000, the default, a server uses 7 times the CPU time.
        configs[table][f"{prefix}.shard_num"] = len(task.ps)
    return configs


def _loss(
    model: str, logits: paddle.static.Variable, labels: paddle.static.Variable
) -> paddle.static.Variable:
    functional = paddle.nn.functional
    if model != "recommender":
        return paddle.mean(functional.cross_entropy(logits, labels))
    return functional.binary_cross_entropy_with_logits(
        logits, paddle.cast(labels, "float32")
    )


def _set_initial_weights(model: str) -> None:
    """Sets the weights of this worker; the first worker's become those of the servers."""
    scope = paddle.static.global_scope()
    for name, weight in zip(_NAMES, initial_weights(model), strict=False):
        value = weight.transpose(3, 2, 0, 1).copy() if weight.ndim == 4 else weight
        scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())


def _write_files(task: Task, count: int) -> list[str]:
    """Writes batches as text, the form in which a dataset of Paddle is read.

    If a share of the ids is to be new, each call writes others.
    """
    share = task.options.get("new_ids", 0)
    name = f"{task.model}-{task.batch_size}-{task.index}" + "-new" * bool(share)
    folder = Path(task.data).with_suffix("") / name
    folder.mkdir(parents=True, exist_ok=True)
    stream = itertools.cycle(zip(*data_of(task).batches(), strict=True))
    paths = []
    for part in range(count):
        path = folder / f"{part}.txt"
        paths.append(str(path))
        batches = [next(stream) for _ in range(_STEPS_PER_FILE)]
        if path.exists() and not share:
            continue
        with path.with_suffix(".part").open("w") as file:
            for *inputs, labels in batches:
                slots = [*(_some_new(each, share) for each in inputs), labels]
                for example in zip(*slots, strict=True):
                    file.write(" ".join(_slot(each) for each in example) + "\n")
        path.with_suffix(".part").rename(path)
    return paths


def _some_new(ids: np.ndarray, share: float) -> np.ndarray:
    """Replaces a share of the ids by some that nobody has seen."""
    new = np.random.randint(np.iinfo(np.int64).max, size=ids.shape)
    return np.where(np.random.uniform(size=ids.shape) < share, new, ids)


def _ragged(ids: np.ndarray) -> Any:
    """Returns bags of ids, one for each row, as Paddle's tensor of all ids."""
    lengths = [[ids[0].size] * len(ids)]
    return paddle.base.create_lod_tensor(ids.reshape(-1, 1), lengths, paddle.CPUPlace())


def _slot(values: Any) -> str:
    """Returns the numbers of one input of an example, after how many they are."""
    flat = np.ravel(values)
    written = "%.4g" if flat.dtype.kind == "f" else "%d"
    return f"{flat.size} " + " ".join(written % each for each in flat)


def main() -> None:
    """Serves, or trains as peers.py asks."""
    task = Task.from_environment()
    addresses = task.ps if task.job == "ps" else task.workers
    host, port = addresses[task.index].split(":")
    os.environ.update(
        PADDLE_PSERVERS_IP_PORT_LIST=",".join(task.ps),
        PADDLE_TRAINER_ENDPOINTS=",".join(task.workers),
        PADDLE_TRAINERS_NUM=str(len(task.workers)),
        PADDLE_TRAINER_ID=str(task.index),
        TRAINING_ROLE="PSERVER" if task.job == "ps" else "TRAINER",
        POD_IP=host,
        PADDLE_PORT=port,
    )
    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    inputs = _inputs(task.model)
    labels = paddle.static.data("labels", [None, 1], "int64")
    logits = _logits(task.model, inputs)
    loss = _loss(task.model, logits, labels)
    inference = paddle.static.default_main_program().clone(for_test=True)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    if configs := task.options.get("a_sync_configs"):
        strategy.a_sync_configs = configs
    if task.model == "recommender":
        strategy.sparse_table_configs = _sgd_on_rows(task)
    kind = {"sgd": paddle.optimizer.SGD, "adam": paddle.optimizer.Adam}[task.optimizer]
    optimizer = kind(learning_rate=task.learning_rate)
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    if task.job == "ps":
        fleet.init_server()
        fleet.run_server()
        return

    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    _set_initial_weights(task.model)
    fleet.init_worker()
    prepared: dict[int, paddle.distributed.InMemoryDataset] = {}

    def prepare(steps: int) -> None:
        if steps in prepared and not task.options.get("new_ids"):
            return
        if steps % _STEPS_PER_FILE:
            raise ValueError(f"steps is a multiple of {_STEPS_PER_FILE}; got {steps}")
        for old in prepared.values():
            old.release_memory()
        prepared.clear()
        # A new one: Paddle aborts now and then when a dataset is filled again.
        dataset = paddle.distributed.InMemoryDataset()
        dataset.init(
            batch_size=task.batch_size,
            thread_num=1,
            pipe_command="cat",
            use_var=[*inputs, labels],
        )
        count = steps // _STEPS_PER_FILE
        files = _write_files(task, min(count, 10))
        dataset.set_filelist([files[part % len(files)] for part in range(count)])
        dataset.load_into_memory()
        prepared[steps] = dataset

    def train(steps: int) -> None:
        executor.train_from_dataset(
            paddle.static.default_main_program(),
            prepared[steps],
            print_period=10**9,
        )

    tables: tuple[str, ...] = ()
    if task.model == "recommender":
        tables = _TABLES
        inference = DistributedInfer(inference).get_dist_infer_program()

    def predict(*batch: np.ndarray) -> np.ndarray:
        scope = paddle.static.global_scope()
        names = _NAMES[: len(initial_weights(task.model))]
        # Training pulls in the background, so that the last weights are on the servers;
        # save_persistables, the public way to get them, writes them to files.
        handle = fleet.fleet._runtime_handle
        handle._worker.pull_dense_params(scope, len(tables), list(names))
        # A scope of its own: training changes the types of the variables in its scope.
        copied = paddle.static.Scope()
        for name in names:
            value = np.array(scope.find_var(name).get_tensor())
            copied.var(name).get_tensor().set(value, paddle.CPUPlace())
        for name in tables:
            # Empty: a look-up asks the servers, but wants the table's shape.
            rows = copied.var(name).get_selected_rows()
            rows.set_height(ROWS)
            rows.get_tensor().set(np.zeros((1, WIDTH), np.float32), paddle.CPUPlace())
        feed = dict(zip([each.name for each in inputs], batch, strict=True))
        if task.model == "recommender":
            feed = {name: _ragged(ids) for name, ids in feed.items()}
        else:
            feed["images"] = feed["images"].reshape(-1, 784)
        feed["labels"] = np.zeros((len(batch[0]), 1), np.int64)
        with paddle.static.scope_guard(copied):
            (result,) = paddle.static.Executor(paddle.CPUPlace()).run(
                inference, feed=feed, fetch_list=[logits]
            )
        return result

    serve(task, train, predict, prepare=prepare)


if __name__ == "__main__":
    main()
