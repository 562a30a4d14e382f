"""Iterators over datasets, deleted where nobody waits for it.

A thread of TensorFlow tunes each pipeline, with pauses of up to a minute. Told to end
with its iterator, it now and then sleeps on, and the deletion waits for the rest of a
pause. Seen with TensorFlow 2.21; without a tuner (`options.autotune`) it was not.
"""

import threading
from typing import Any


def delete_in_background(owned: list[Any]) -> None:
    """Empties a list, which alone has what is in it, in a thread of its own.

    The program ends when that thread has.
    """
    # Once all threads are awaited, at the interpreter's end, none that begins is.
    if threading.main_thread().is_alive():
        threading.Thread(target=owned.clear, name="deletion").start()
