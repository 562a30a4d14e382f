"""The ratings of MovieLens as arrays, from a folder of CSV files or from TFDS.

`https://files.grouplens.org/datasets/movielens/ml-latest-small.zip` is such a folder:

    import movielens

    train, validation = movielens.read_folder("ml-latest-small").split()
"""

from __future__ import annotations

import csv
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

TFDS_NAME = "movielens/latest-small-ratings"
NO_GENRE = -1
COLUMNS = {
    "ratings.csv": ("userId", "movieId", "rating"),
    "movies.csv": ("movieId", "genres"),
}


class MovieLensError(ValueError):
    """Ratings that are unavailable, or not in the format of MovieLens."""


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Ratings of movies by users. Users, movies and genres are numbered from 0.

    Attributes:
        users: The user of each rating, int32.
        movies: The movie of each rating, int32.
        stars: Each rating, 0.5 to 5, float32.
        genres: The genres of each movie, int32, `[num_movies, most genres of a movie]`,
            padded with `NO_GENRE`.
        user_ids: The id that MovieLens gives each user, int64, `[num_users]`.
        movie_ids: The same of each movie, `[num_movies]`.
        num_genres: The number of genres.
    """

    users: np.ndarray
    movies: np.ndarray
    stars: np.ndarray
    genres: np.ndarray
    user_ids: np.ndarray
    movie_ids: np.ndarray
    num_genres: int

    def __len__(self) -> int:
        return len(self.stars)

    @property
    def num_users(self) -> int:
        """The number of users."""
        return len(self.user_ids)

    @property
    def num_movies(self) -> int:
        """The number of movies."""
        return len(self.genres)

    def split(self, validation_share: float = 0.1) -> tuple[Ratings, Ratings]:
        """Splits the ratings into two sets, the same way on every machine.

        `numpy.random.RandomState(0)`, whose stream NumPy has frozen, shuffles the
        ratings, sorted by user and movie.

        Returns:
            The training set and the validation set.
        """
        order = np.random.RandomState(0).permutation(len(self))
        parts = np.split(order, [round(len(self) * (1 - validation_share))])
        train, validation = (
            dataclasses.replace(
                self,
                users=self.users[part],
                movies=self.movies[part],
                stars=self.stars[part],
            )
            for part in parts
        )
        return train, validation


def read_folder(folder: str | pathlib.Path) -> Ratings:
    """Reads `ratings.csv` and `movies.csv`.

    Raises:
        MovieLensError: A file is missing or has other content.
    """
    path = pathlib.Path(folder)
    try:
        rated = [
            (int(row["userId"]), int(row["movieId"]), float(row["rating"]))
            for row in _rows(path / "ratings.csv")
        ]
        genres = {
            int(row["movieId"]): row["genres"].split("|")
            for row in _rows(path / "movies.csv")
        }
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, MovieLensError):
            raise
        raise MovieLensError(
            f"a line of {folder} is not in the format of MovieLens: {error}"
        ) from error
    return _numbered(rated, genres, str(folder))


def _rows(path: pathlib.Path) -> Iterable[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = set(COLUMNS[path.name]) - set(rows.fieldnames or ())
            if missing:
                raise MovieLensError(
                    f"{path} has no column {', '.join(sorted(missing))}; its first "
                    f"line names {', '.join(rows.fieldnames or ['none'])}"
                )
            yield from rows
    except OSError as error:
        raise MovieLensError(
            f"{path} cannot be read ({error.strerror}): name the folder of an "
            "unpacked ml-latest-small.zip, with ratings.csv and movies.csv"
        ) from error


def load_tfds(data_dir: str | None) -> Ratings:
    """Reads `movielens/latest-small-ratings`, which TFDS downloads once, 1 MB.

    Args:
        data_dir: Where TFDS stores data; its own default if None.

    Raises:
        MovieLensError: The data is not there and cannot be downloaded.
    """
    # Importing it takes seconds, and a folder of CSV files does not need it.
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    builder = tfds.builder(TFDS_NAME, data_dir=data_dir)
    if not builder.is_prepared():
        _require_network(builder.builder_config.download_url)
    builder.download_and_prepare()
    names = builder.info.features["movie_genres"].feature.names
    rated, genres = [], {}
    for batch in builder.as_dataset(split="train").ragged_batch(4096):
        columns = (batch[key].numpy() for key in ("user_id", "movie_id", "user_rating"))
        of_movies = batch["movie_genres"].to_list()
        for user, movie, stars, of_movie in zip(*columns, of_movies, strict=True):
            rated.append((int(user), int(movie), float(stars)))
            genres[int(movie)] = [names[genre] for genre in of_movie]
    return _numbered(rated, genres, TFDS_NAME)


def _require_network(url: str) -> None:
    """Fails unless `url` answers: TFDS itself would retry for minutes."""
    import requests

    try:
        requests.head(url, timeout=10)
    except requests.RequestException as error:
        raise MovieLensError(
            f"{TFDS_NAME} must be downloaded first, but {url} does not answer "
            f"({type(error).__name__}): pass a folder with ratings.csv and movies.csv as "
            "--ratings_dir, or a --data_dir in which TFDS has the data"
        ) from error


def _numbered(
    rated: Sequence[tuple[int, int, float]],
    genres: Mapping[int, Sequence[str]],
    source: str,
) -> Ratings:
    """Numbers users, movies and genres in an order that does not depend on the source."""
    if not rated:
        raise MovieLensError(f"{source} has no ratings")
    unknown = {movie for _, movie, _ in rated} - set(genres)
    if unknown:
        raise MovieLensError(
            f"{source} has ratings of movie {min(unknown)}, which it does not list"
        )
    user_ids, movie_ids, stars = zip(*sorted(rated), strict=True)
    users, user_numbers = np.unique(user_ids, return_inverse=True)
    movies, movie_numbers = np.unique(movie_ids, return_inverse=True)
    of_movies = [sorted(set(genres[movie])) for movie in movies.tolist()]
    names = sorted({name for of_movie in of_movies for name in of_movie})
    table = np.full([len(movies), max(map(len, of_movies))], NO_GENRE, np.int32)
    for row, of_movie in zip(table, of_movies, strict=True):
        row[: len(of_movie)] = [names.index(name) for name in of_movie]
    return Ratings(
        users=user_numbers.astype(np.int32),
        movies=movie_numbers.astype(np.int32),
        stars=np.asarray(stars, np.float32),
        genres=table,
        user_ids=users.astype(np.int64),
        movie_ids=movies.astype(np.int64),
        num_genres=len(names),
    )
