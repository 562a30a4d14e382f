"""Images that look different on each client: the features shift, not the labels.

Divide the examples with `tfdist.research.federated.iid`, then change the images of some clients.
"""

import math

import numpy as np


def rotated(images: np.ndarray, degrees: float) -> np.ndarray:
    """Rotates images about their middle, counterclockwise, with zeros where none was.

    Pixels are interpolated between their four neighbours.

    Args:
        images: (examples, height, width) or (examples, height, width, channels).
        degrees: The angle.

    Returns:
        Images of the same shape and dtype.

    Raises:
        ValueError: If the images have another shape.
    """
    _check(images)
    height, width = images.shape[1:3]
    angle = math.radians(degrees)
    down, right = np.mgrid[:height, :width].astype(np.float64)
    down -= (height - 1) / 2
    right -= (width - 1) / 2
    # The source of each pixel of the result; rounding must not leave the image.
    row = np.round(
        math.cos(angle) * down + math.sin(angle) * right + (height - 1) / 2, 9
    )
    column = np.round(
        math.cos(angle) * right - math.sin(angle) * down + (width - 1) / 2, 9
    )
    top, left = np.floor(row).astype(int), np.floor(column).astype(int)
    found = np.zeros(images.shape, dtype=np.float64)
    for below in (0, 1):
        for beside in (0, 1):
            weight = np.abs(1 - below - (row - top)) * np.abs(
                1 - beside - (column - left)
            )
            y, x = top + below, left + beside
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            pixels = images[:, np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)]
            weight = np.where(inside, weight, 0.0)
            found += pixels * weight.reshape(height, width, *(1,) * (images.ndim - 3))
    if np.issubdtype(images.dtype, np.integer):
        found = np.rint(found)
    return found.astype(images.dtype)


def brighter(images: np.ndarray, by: float) -> np.ndarray:
    """Adds a part of the full range to each pixel, and clips at both ends.

    Args:
        images: Integers, whose range is their dtype's, or floats from 0 to 1.
        by: From -1, all black, to 1, all white.

    Returns:
        Images of the same shape and dtype.

    Raises:
        ValueError: If the images have another shape, or `by` is outside its range.
    """
    _check(images)
    if not -1 <= by <= 1:
        raise ValueError(f"brightness changes by -1 to 1; received {by}")
    whole = np.issubdtype(images.dtype, np.integer)
    white = np.iinfo(images.dtype).max if whole else 1
    found = np.clip(images.astype(np.float64) + by * white, 0, white)
    return (np.rint(found) if whole else found).astype(images.dtype)


def _check(images: np.ndarray) -> None:
    if images.ndim not in (3, 4):
        raise ValueError(
            "images have shape (examples, height, width) or (examples, height, width, "
            f"channels); received {images.shape}"
        )
