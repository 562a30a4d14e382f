"""A server or a worker of PaddlePaddle's asynchronous parameter servers (`a_sync`).

Workers train with `train_from_dataset`: `Executor.run` in this mode pushes gradients and
never pulls a weight.
"""

import os
from pathlib import Path

import numpy as np
import paddle
from paddle.distributed import fleet
from peer_programs.control import Task, serve
from peer_programs.data import Data, initial_weights

_STEPS_PER_FILE = 100


_NAMES = "abcdef"


def _logits(model: str, images: paddle.static.Variable) -> paddle.static.Variable:
    weights = initial_weights(model)
    static = paddle.static.nn
    hidden, names = images, iter(_NAMES)
    if model == "cnn":
        hidden = paddle.reshape(images, [-1, 1, 28, 28])
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


def _set_initial_weights(model: str) -> None:
    """Sets the weights of this worker; the first worker's become those of the servers."""
    scope = paddle.static.global_scope()
    for name, weight in zip(_NAMES, initial_weights(model), strict=False):
        value = weight.transpose(3, 2, 0, 1).copy() if weight.ndim == 4 else weight
        scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())


def _write_files(task: Task) -> list[str]:
    """Writes the batches as text, the form in which a dataset of Paddle is read."""
    folder = Path(task.data).with_suffix("") / f"{task.model}-{task.index}"
    folder.mkdir(parents=True, exist_ok=True)
    stream = Data(task).stream()
    paths = []
    for part in range(10):
        path = folder / f"{part}.txt"
        paths.append(str(path))
        batches = [next(stream) for _ in range(_STEPS_PER_FILE)]
        if path.exists():
            continue
        with path.with_suffix(".part").open("w") as file:
            for images, labels in batches:
                for image, label in zip(
                    images.reshape(len(labels), 784), labels, strict=True
                ):
                    pixels = " ".join(f"{pixel:.4g}" for pixel in image)
                    file.write(f"784 {pixels} 1 {label}\n")
        path.with_suffix(".part").rename(path)
    return paths


def main() -> None:
    """Serves, or trains as peers.py asks."""
    task = Task.from_environment()
    cnn = task.model == "cnn"
    addresses = task.ps if task.job == "ps" else task.workers
    os.environ.update(
        PADDLE_PSERVERS_IP_PORT_LIST=",".join(task.ps),
        PADDLE_TRAINER_ENDPOINTS=",".join(task.workers),
        PADDLE_TRAINERS_NUM=str(len(task.workers)),
        PADDLE_TRAINER_ID=str(task.index),
        TRAINING_ROLE="PSERVER" if task.job == "ps" else "TRAINER",
        POD_IP="127.0.0.1",
        PADDLE_PORT=addresses[task.index].split(":")[1],
    )
    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    images = paddle.static.data("images", [None, 784], "float32")
    labels = paddle.static.data("labels", [None, 1], "int64")
    logits = _logits(task.model, images)
    loss = paddle.mean(paddle.nn.functional.cross_entropy(logits, labels))
    inference = paddle.static.default_main_program().clone(for_test=True)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    if configs := task.options.get("a_sync_configs"):
        strategy.a_sync_configs = configs
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
    files = _write_files(task)
    prepared: dict[int, paddle.distributed.InMemoryDataset] = {}

    def prepare(steps: int) -> None:
        if steps in prepared:
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
            use_var=[images, labels],
        )
        count = steps // _STEPS_PER_FILE
        dataset.set_filelist([files[part % len(files)] for part in range(count)])
        dataset.load_into_memory()
        prepared[steps] = dataset

    def train(steps: int) -> None:
        executor.train_from_dataset(
            paddle.static.default_main_program(),
            prepared[steps],
            print_period=10**9,
        )

    def predict(batch: np.ndarray) -> np.ndarray:
        scope, names = paddle.static.global_scope(), _NAMES[: 6 if cnn else 4]
        # Training pulls in the background, so that the last weights are on the servers;
        # save_persistables, the public way to get them, writes them to files.
        handle = fleet.fleet._runtime_handle
        handle._worker.pull_dense_params(scope, 0, list(names))
        # A scope of its own: training changes the types of the variables in its scope.
        copied = paddle.static.Scope()
        for name in names:
            value = np.array(scope.find_var(name).get_tensor())
            copied.var(name).get_tensor().set(value, paddle.CPUPlace())
        with paddle.static.scope_guard(copied):
            (result,) = paddle.static.Executor(paddle.CPUPlace()).run(
                inference,
                feed={
                    "images": batch.reshape(-1, 784),
                    "labels": np.zeros((len(batch), 1), np.int64),
                },
                fetch_list=[logits],
            )
        return result

    serve(task, train, predict, prepare=prepare)


if __name__ == "__main__":
    main()
