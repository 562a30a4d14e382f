"""Trains a two-tower model that predicts how many stars a user will give.

The tables of users, items and tags are spread over the parameter servers. A worker
receives only the rows that its batch looks up; no process ever holds a whole table:

    tfdist local --num_ps=2 --num_workers=2 examples/recommender.py \
        --ratings_dir=ml-latest-small --compare

`--dataset=movielens` reads the CSV files in `--ratings_dir`; without that flag, TFDS
downloads them. `--compare` first trains in a single process too, and fails if the
validation errors differ by more than 2%. `--dataset=zipf` generates ratings, for a
table of any size:

    tfdist local --num_ps=2 --num_workers=2 examples/recommender.py \
        --dataset=zipf --rows=20000000

`--dynamic` looks users and items up by the ids that MovieLens gives them, in tables that
grow: nobody numbers them first, and an id gets its row when training meets it.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

import keras
import movielens
import numpy as np
import rich
import rich.box
import rich.table
import task_memory
import tensorflow as tf
import zipf_ratings
from absl import app, flags, logging

import tf_config
import tfdist

MOST_DIFFERENCE = 0.02
ONLY_FOR = {
    "movielens": ("ratings_dir", "data_dir"),
    "zipf": ("rows", "exponent", "steps_per_epoch"),
}
VALIDATION_BATCHES = 20

FLAGS = flags.FLAGS
flags.DEFINE_enum(
    "strategy",
    "parameter_server",
    ["parameter_server", "one_device"],
    "How training is distributed.",
)
flags.DEFINE_enum(
    "dataset", "movielens", ["movielens", "zipf"], "Where the ratings come from."
)
flags.DEFINE_string(
    "ratings_dir", None, "Folder with MovieLens's ratings.csv and movies.csv."
)
flags.DEFINE_string(
    "data_dir", None, "Where TFDS stores data; its own default if unset."
)
flags.DEFINE_integer(
    "rows",
    1_000_000,
    "Number of items for --dataset=zipf.",
    lower_bound=1,
    upper_bound=2**31 - 1,
)
flags.DEFINE_float(
    "exponent",
    1.0,
    "Exponent of Zipf's law for --dataset=zipf; 0 makes all items equally popular.",
    lower_bound=0.0,
)
flags.DEFINE_integer(
    "steps_per_epoch",
    500,
    "Steps per epoch of the endless --dataset=zipf.",
    lower_bound=1,
)
flags.DEFINE_boolean(
    "dynamic", False, "Look up users and items by their raw ids, in tables that grow."
)
flags.DEFINE_integer(
    "max_rows",
    100_000,
    "Rows for which --dynamic reserves room, for users and for items each.",
    lower_bound=1,
)
flags.DEFINE_integer("dim", 16, "Length of the rows of the tables.", lower_bound=1)
flags.DEFINE_integer("epochs", 5, "Passes over the ratings.", lower_bound=1)
flags.DEFINE_integer("batch_size", 256, "Ratings per step.", lower_bound=1)
flags.DEFINE_integer(
    "steps_per_execution", 1, "Steps per call of the train function.", lower_bound=1
)
flags.DEFINE_float("learning_rate", 0.1, "Learning rate of Adagrad.", lower_bound=0.0)
flags.DEFINE_integer(
    "seed", 0, "Seed of the weights, the shuffling and the generated ratings."
)
flags.DEFINE_boolean(
    "compare",
    False,
    "Also train in a single process, and fail if the validation RMSEs differ by more "
    f"than {MOST_DIFFERENCE:.0%}.",
)


class Data(NamedTuple):
    """Batches of ({`user`, `item`, `tags`}, stars), and the number of each."""

    train: tf.data.Dataset
    validation: tf.data.Dataset
    users: int
    items: int
    tags: int
    mean_stars: float
    steps_per_epoch: int | None = None


def load_movielens() -> Data:
    """Returns the ratings of MovieLens, a tenth of them for validation."""
    if FLAGS.ratings_dir is None:
        ratings = movielens.load_tfds(FLAGS.data_dir)
    else:
        ratings = movielens.read_folder(FLAGS.ratings_dir)
    train, validation = ratings.split()
    examples = batched(train, shuffle=True), batched(validation, shuffle=False)
    return Data(
        *examples,
        users=ratings.num_users,
        items=ratings.num_movies,
        tags=ratings.num_genres,
        mean_stars=float(train.stars.mean()),
    )


def batched(ratings: movielens.Ratings, shuffle: bool) -> tf.data.Dataset:
    """Returns ratings in batches, each with the genres of its movie as tags."""
    users, items = ratings.users, ratings.movies
    if FLAGS.dynamic:
        users, items = ratings.user_ids[users], ratings.movie_ids[items]
    genres = ratings.genres[ratings.movies]
    features = {"user": users, "item": items, "tags": genres}
    dataset = tf.data.Dataset.from_tensor_slices((features, ratings.stars))
    if shuffle:
        dataset = dataset.shuffle(len(ratings), seed=FLAGS.seed)
    return dataset.batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE)


def load_zipf() -> Data:
    """Returns generated ratings; the workers generate them."""
    ratings = zipf_ratings.ZipfRatings(num_items=FLAGS.rows, exponent=FLAGS.exponent)
    return Data(
        train=ratings.batches(FLAGS.batch_size, FLAGS.seed),
        validation=ratings.batches(4096, FLAGS.seed + 1).take(VALIDATION_BATCHES),
        users=ratings.num_users,
        items=ratings.num_items,
        tags=ratings.num_tags,
        mean_stars=zipf_ratings.MEAN,
        steps_per_epoch=FLAGS.steps_per_epoch,
    )


def build_model(data: Data) -> keras.Model:
    """Returns a model with one vector per user, and one per item with its tags.

    The stars are the dot product of the two, plus a linear function of both: the
    averages of this user and of this item.
    """
    tag_width = data.train.element_spec[0]["tags"].shape[1]
    id_dtype = "int64" if FLAGS.dynamic else "int32"
    user = keras.Input((), dtype=id_dtype, name="user")
    item = keras.Input((), dtype=id_dtype, name="item")
    tags = keras.Input((tag_width,), dtype="int32", name="tags")

    users, items = tables_that_grow() if FLAGS.dynamic else tables_of(data)
    user_vector, item_vector = users(user), items(item)
    item_vector += tfdist.embedding.EmbeddingBag(
        data.tags, FLAGS.dim, name="tags_of_items"
    )(tags)
    both = keras.layers.Concatenate()([user_vector, item_vector])
    mean = keras.initializers.Constant(data.mean_stars)
    averages = keras.layers.Dense(1, bias_initializer=mean)(both)
    match = keras.layers.Dot(axes=1)([user_vector, item_vector])
    stars = keras.layers.Add(name="stars")([averages, match])
    return keras.Model({"user": user, "item": item, "tags": tags}, stars)


def tables_of(data: Data) -> tuple[keras.layers.Layer, keras.layers.Layer]:
    """Returns the tables of users and of items, of which there are so many."""
    return (
        tfdist.embedding.Embedding(data.users, FLAGS.dim, name="users"),
        tfdist.embedding.Embedding(data.items, FLAGS.dim, name="items"),
    )


def tables_that_grow() -> tuple[keras.layers.Layer, keras.layers.Layer]:
    """Returns the same for any users and items."""
    room = {"max_rows": FLAGS.max_rows}
    # With one seed for both, user 7 and movie 7 would begin with the same row.
    return (
        tfdist.embedding.DynamicEmbedding(
            FLAGS.dim, **room, seed=2 * FLAGS.seed, name="users"
        ),
        tfdist.embedding.DynamicEmbedding(
            FLAGS.dim, **room, seed=2 * FLAGS.seed + 1, name="items"
        ),
    )


def main(argv: list[str]) -> None:
    """Trains, validates, and reports."""
    if len(argv) > 1:
        raise app.UsageError(f"Only flags are allowed, got: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)
    check_flags()
    single_process_rmse = train_in_a_single_process() if FLAGS.compare else None

    # A dataset belongs to the cluster in which it was created, so the strategy comes first.
    if FLAGS.strategy == "parameter_server":
        strategy = tfdist.ParameterServerStrategy()
    else:
        strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    keras.utils.set_random_seed(FLAGS.seed)
    try:
        data = load_movielens() if FLAGS.dataset == "movielens" else load_zipf()
    except movielens.MovieLensError as error:
        sys.exit(str(error))

    tasks = {"this process": ""}
    if FLAGS.strategy == "parameter_server":
        cluster = tf_config.TFConfig.from_environment().cluster
        tasks = {str(task): task.device for task in cluster.tasks()}
    before = task_memory.of_tasks(tasks)
    with strategy.scope():
        model = build_model(data)
        model.compile(
            # Its slots are as large as the tables; Adam's would be twice as large.
            optimizer=keras.optimizers.Adagrad(FLAGS.learning_rate),
            loss="mse",
            metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
            steps_per_execution=FLAGS.steps_per_execution,
        )
    start = time.monotonic()
    model.fit(
        data.train,
        epochs=FLAGS.epochs,
        steps_per_epoch=data.steps_per_epoch,
        shuffle=False,
        verbose=2,
    )
    seconds = time.monotonic() - start
    rmse = model.evaluate(data.validation, verbose=0, return_dict=True)["rmse"]

    if FLAGS.strategy == "parameter_server":
        placement = strategy.placement_report()
        print(placement)
        print(strategy.worker_report())
        held = {f"ps:{i}": n for i, n in enumerate(placement.bytes_per_ps)}
    else:
        held = {"this process": bytes_of_variables(model)}
    rich.print(memory_table(before, task_memory.of_tasks(tasks), held))
    for name in ("users", "items") if FLAGS.dynamic else ():
        print(rows_in_use(model.get_layer(name)))
    print(f"Trained in {seconds:.1f} s.")
    print(f"RMSE of predicting the mean: {rmse_of_the_mean(data):.4f}")
    print(f"Validation RMSE: {rmse:.4f}")
    if not math.isfinite(rmse):
        sys.exit("Training failed: the error is not finite. Lower --learning_rate.")
    if single_process_rmse is not None:
        check_match(rmse, single_process_rmse)


def check_flags() -> None:
    """Exits if flags contradict each other, or if there is no cluster."""
    for dataset, names in ONLY_FOR.items():
        unused = [name for name in names if FLAGS[name].present]
        if dataset != FLAGS.dataset and unused:
            sys.exit(
                f"--{unused[0]} is for --dataset={dataset}, but --dataset is "
                f"{FLAGS.dataset}: change one of the two."
            )
    if FLAGS["max_rows"].present and not FLAGS.dynamic:
        sys.exit("--max_rows is for tables that grow: add --dynamic, or remove it.")
    if FLAGS.strategy == "one_device":
        if FLAGS.compare:
            sys.exit(
                "--compare compares a cluster with a single process, and "
                "--strategy=one_device is one: remove one of the two."
            )
    elif not os.environ.get("TF_CONFIG"):
        sys.exit(
            "--strategy=parameter_server needs a cluster: start this script with "
            "`tfdist local --num_ps=2 --num_workers=2`, or pass "
            "--strategy=one_device."
        )


def train_in_a_single_process() -> float:
    """Runs this script in a separate process, and returns its validation RMSE.

    This process cannot do it: it can join a cluster only before it trains.
    """
    done = subprocess.run(
        [sys.executable, *sys.argv, "--nocompare", "--strategy=one_device"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        print(f"single process | {line}", flush=True)
    if done.returncode:
        sys.exit(
            f"The training in a single process failed with status {done.returncode}."
        )
    return float(re.findall(r"^Validation RMSE: (\S+)$", done.stdout, re.MULTILINE)[0])


def check_match(rmse: float, single_process_rmse: float) -> None:
    """Prints both errors, and fails if they differ too much."""
    difference = abs(rmse / single_process_rmse - 1)
    print(
        f"Validation RMSE of a single process: {single_process_rmse:.4f} "
        f"({difference:.2%} apart)"
    )
    if not difference <= MOST_DIFFERENCE:
        sys.exit(
            f"Training failed: on the cluster the RMSE is {rmse:.4f} and in a single "
            f"process {single_process_rmse:.4f}. They differ by {difference:.2%}, "
            f"which is more than {MOST_DIFFERENCE:.0%}."
        )


def rmse_of_the_mean(data: Data) -> float:
    """Returns the error of always predicting the mean of the training ratings."""
    stars = np.concatenate([stars for _, stars in data.validation.as_numpy_iterator()])
    return float(np.sqrt(np.mean((stars - data.mean_stars) ** 2)))


def rows_in_use(table: tfdist.embedding.DynamicEmbedding) -> str:
    """Returns a line that says how full a table is."""
    report = table.report()
    return (
        f"Table of {table.name}: {report['rows']:,} of {report['max_rows']:,} rows in "
        f"use; ids that found no room: {report['refused']:,}"
    )


def bytes_of_variables(model: keras.Model) -> int:
    """Returns the bytes of the variables of a model, its optimizer and its metrics."""
    variables = (
        *model.variables,
        *model.optimizer.variables,
        *model.metrics_variables,
    )
    return sum(
        math.prod(each.shape) * tf.as_dtype(each.dtype).size for each in variables
    )


def memory_table(
    before: Mapping[str, task_memory.Memory | None],
    after: Mapping[str, task_memory.Memory | None],
    held: Mapping[str, int],
) -> rich.table.Table:
    """Returns the memory of each task, in MB, as one row per task.

    Args:
        before: The memory of each task before the model was built.
        after: The same at the end.
        held: The bytes of variables on each task.
    """
    table = rich.table.Table("task", box=rich.box.ROUNDED, title="memory, in MB")
    for heading in ("variables", "before", "peak", "grown by"):
        table.add_column(heading, justify="right")
    for task, peak in after.items():
        start = before[task]
        known = [start.now, peak.peak, peak.peak - start.now] if start and peak else []
        cells = [f"{each / 1e6:,.0f}" for each in [held.get(task, 0), *known]]
        table.add_row(task, *cells)
    return table


if __name__ == "__main__":
    app.run(main)
