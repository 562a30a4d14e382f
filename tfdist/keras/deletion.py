"""Deletes dataset iterators in the background.

A TensorFlow thread tunes each pipeline, and sleeps for up to a minute between passes.
When its iterator is deleted, it sometimes misses the cancellation and sleeps out its
pause, and the deletion waits for it. Observed with TensorFlow 2.21, and never with
tuning disabled (`options.autotune`). At the end of an epoch, `fit` would have to wait
that long.
"""

import threading
from typing import Any


def delete_in_background(owned: list[Any]) -> None:
    """Clears a list that holds the only references to its items, in another thread.

    The program waits for that thread before it exits.
    """
    # At exit, the interpreter joins all threads once. It would not join one that starts
    # after that, and would tear TensorFlow down while the thread uses it.
    if threading.main_thread().is_alive():
        threading.Thread(target=owned.clear, name="deletion").start()
