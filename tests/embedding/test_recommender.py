"""The recommender's data and flags, outside a cluster."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from ..support import jobs
from ..support.raising import raises

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

RATINGS = """userId,movieId,rating,timestamp
7,20,4.5,1
3,10,2.0,2
7,10,5.0,3
"""
MOVIES = """movieId,title,genres
10,"Alien, The",Horror|Sci-Fi
20,Heat,Action
30,Nobody rated this,Western
"""


@pytest.fixture
def movielens(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("movielens")


@pytest.fixture
def zipf_ratings(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("zipf_ratings")


def folder(path: Path, ratings: str = RATINGS, movies: str = MOVIES) -> Path:
    (path / "ratings.csv").write_text(ratings)
    (path / "movies.csv").write_text(movies)
    return path


def test_a_folder_is_read_and_numbered(movielens, tmp_path):
    ratings = movielens.read_folder(folder(tmp_path))
    assert list(ratings.users) == [0, 1, 1]
    assert list(ratings.movies) == [0, 0, 1]
    assert list(ratings.stars) == [2.0, 5.0, 4.5]
    # Action, Horror, Sci-Fi: no movie that is rated is a Western.
    assert ratings.genres.tolist() == [[1, 2], [0, -1]]
    assert (ratings.num_users, ratings.num_movies, ratings.num_genres) == (2, 2, 3)
    assert list(ratings.user_ids[ratings.users]) == [3, 7, 7]
    assert list(ratings.movie_ids[ratings.movies]) == [10, 10, 20]


def test_a_split_has_every_rating_once_and_is_always_the_same(movielens, tmp_path):
    rated = "\n".join(f"{user},10,{user / 10}" for user in range(50))
    ratings = movielens.read_folder(folder(tmp_path, f"userId,movieId,rating\n{rated}"))
    train, validation = ratings.split(0.2)
    assert (len(train), len(validation)) == (40, 10)
    assert sorted([*train.stars, *validation.stars]) == sorted(ratings.stars)
    np.testing.assert_array_equal(ratings.split(0.2)[1].users, validation.users)


@pytest.mark.parametrize(
    ("ratings", "movies", "words"),
    [
        ("userId,movieId\n1,10\n", MOVIES, "ratings.csv has no column rating"),
        (RATINGS, "id,genres\n", "movies.csv has no column movieId"),
        ("", MOVIES, "has no column movieId, rating, userId.*names none"),
        ("userId,movieId,rating\n", MOVIES, "has no ratings"),
        (RATINGS + "1,99,3.0,4\n", MOVIES, "ratings of movie 99, which it does not"),
        (
            RATINGS + "1,ten,3.0,4\n",
            MOVIES,
            "a line of .* is not in the format of MovieLens.*ten",
        ),
        (RATINGS + "1\n", MOVIES, "a line of .* is not in the format of MovieLens"),
    ],
)
def test_other_files_are_refused(movielens, tmp_path, ratings, movies, words):
    with pytest.raises(movielens.MovieLensError, match=words):
        movielens.read_folder(folder(tmp_path, ratings, movies))


def test_a_missing_folder_is_refused(movielens, tmp_path):
    with raises(movielens.MovieLensError, "No such file", "ml-latest-small"):
        movielens.read_folder(tmp_path / "none")


def test_tfds_gives_what_a_folder_gives(movielens, monkeypatch, tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    names = tfds.builder(movielens.TFDS_NAME, data_dir=tmp_path).info.features[
        "movie_genres"
    ]
    horror, scifi, action = (
        names.feature.str2int(name) for name in ("Horror", "Sci-Fi", "Action")
    )
    examples = [
        ("7", "20", 4.5, [action]),
        ("3", "10", 2.0, [horror, scifi]),
        ("7", "10", 5.0, [horror, scifi]),
    ]

    def as_dataset(self, *args, **kwargs):
        return tf.data.Dataset.from_generator(
            lambda: (
                {
                    "user_id": user,
                    "movie_id": movie,
                    "user_rating": stars,
                    "movie_genres": genres,
                }
                for user, movie, stars, genres in examples
            ),
            output_signature={
                "user_id": tf.TensorSpec([], tf.string),
                "movie_id": tf.TensorSpec([], tf.string),
                "user_rating": tf.TensorSpec([], tf.float32),
                "movie_genres": tf.TensorSpec([None], tf.int64),
            },
        )

    monkeypatch.setattr(movielens, "_require_network", lambda url: None)
    with tfds.testing.mock_data(as_dataset_fn=as_dataset):
        from_tfds = movielens.load_tfds(str(tmp_path / "tfds"))
    from_folder = movielens.read_folder(folder(tmp_path))
    np.testing.assert_array_equal(from_tfds.users, from_folder.users)
    np.testing.assert_array_equal(from_tfds.movies, from_folder.movies)
    np.testing.assert_array_equal(from_tfds.stars, from_folder.stars)
    np.testing.assert_array_equal(from_tfds.genres, from_folder.genres)


def test_without_a_network_tfds_is_not_waited_for(movielens, tmp_path):
    pytest.importorskip("tensorflow_datasets")
    with raises(movielens.MovieLensError, "--ratings_dir", "--data_dir"):
        movielens._require_network("http://127.0.0.1:1/ml-latest-small.zip")


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.3])
def test_ranks_keep_zipfs_law(zipf_ratings, exponent):
    ratings = zipf_ratings.ZipfRatings(num_items=50, exponent=exponent)
    uniform = (tf.range(200_000, dtype=tf.float64) + 0.5) / 200_000
    counts = np.bincount(ratings.rank(uniform).numpy(), minlength=50)
    edges = np.linspace(1, 51, 51)
    integral = np.log(edges) if exponent == 1 else edges ** (1 - exponent)
    wanted = np.diff(integral) / (integral[-1] - integral[0])
    np.testing.assert_allclose(counts / 200_000, wanted, atol=1e-5)
    assert ratings.rank(tf.constant([0.0, 1.0], tf.float64)).numpy().tolist() == [0, 49]


@pytest.mark.parametrize("num_items", [1, 2, 1000, 2**31 - 1])
def test_every_rank_is_an_item_of_its_own(zipf_ratings, num_items):
    ratings = zipf_ratings.ZipfRatings(num_items=num_items)
    ranks = np.unique(np.linspace(0, num_items - 1, 1000).astype(np.int64))
    items = ratings.ranked(tf.constant(ranks)).numpy()
    assert len(np.unique(items)) == len(ranks)
    assert items.min() >= 0
    assert items.max() < num_items


@pytest.mark.not_in_gate
def test_batches_are_those_of_their_seed(zipf_ratings):
    ratings = zipf_ratings.ZipfRatings(num_items=1000)

    def first(seed):
        return [*ratings.batches(64, seed).take(2).as_numpy_iterator()]

    (features, stars), (next_features, _) = first(1)
    (again, stars_again), _ = first(1)
    (other, _), _ = first(2)
    np.testing.assert_array_equal(features["item"], again["item"])
    np.testing.assert_array_equal(stars, stars_again)
    assert (features["item"] != next_features["item"]).any()
    assert (features["item"] != other["item"]).any()
    assert features["user"].shape == features["item"].shape == stars.shape == (64,)
    assert features["tags"].shape == (64, zipf_ratings.MOST_TAGS)
    assert (features["tags"] != zipf_ratings.NO_TAG).any(axis=1).all()
    assert features["tags"].max() < ratings.num_tags


@pytest.mark.not_in_gate
def test_there_is_more_to_learn_than_noise(zipf_ratings):
    ratings = zipf_ratings.ZipfRatings(num_items=1000)
    features, stars = next(ratings.batches(4096, 0).as_numpy_iterator())
    learnable = ratings.expected_stars(**features).numpy()
    assert abs(stars.mean() - zipf_ratings.MEAN) < 0.2
    assert learnable.std() > 2 * zipf_ratings.NOISE
    assert abs((stars - learnable).std() - zipf_ratings.NOISE) < 0.02


BAD_FLAGS = {
    "--rows=9": "--rows is for --dataset=zipf",
    "--dataset=zipf --ratings_dir=x": "--ratings_dir is for --dataset=movielens",
    "--strategy=one_device --compare": "--strategy=one_device is one: remove one",
    "": "--strategy=parameter_server needs a cluster",
    "--strategy=one_device --ratings_dir=none": "none/movies.csv|none/ratings.csv",
    "--rows=0 --dataset=zipf": "rows",
    "--max_rows=9": "--max_rows is for tables that grow: add --dynamic",
    "--batch_size=0": "batch_size",
    "again": "Only flags are allowed",
}


@pytest.fixture(scope="module")
def said(run_program):
    """Status and error of the program, by command line."""
    arguments = [flags.split() for flags in BAD_FLAGS]
    program = EXAMPLES / "recommender.py"
    done = run_program("wrong_flags.py", program, input=json.dumps(arguments))
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return dict(zip(BAD_FLAGS, lines, strict=True))


@pytest.mark.parametrize("flags", BAD_FLAGS)
def test_bad_flags_end_in_one_line(said, flags):
    status, errors = said[flags]
    assert status != 0
    assert re.search(BAD_FLAGS[flags], errors), errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_single_process_says_what_it_holds(tmp_path):
    rows = 250_000
    flags = "--strategy=one_device --dataset=zipf --epochs=1 --steps_per_epoch=2"
    program = EXAMPLES / "recommender.py"
    done = jobs.run(program, *flags.split(), f"--rows={rows}", cwd=tmp_path)
    held = int(re.search(r"this process +.\D+(\d+)", done.stdout)[1])
    # The table and its Adagrad slots; users and tags are few.
    assert 2 * rows * 16 * 4 / 1e6 <= held <= 3 * rows * 16 * 4 / 1e6
