"""Choice between idle threads that spin and idle threads that sleep.

A thread of TensorFlow that runs out of work looks for more in a loop before it sleeps.
That is a bet on work within microseconds. A step on parameter servers mostly waits for
messages, which take longer: the loop finds nothing, and takes CPU time from another
task of the machine. So the ps, the workers and the chief have their threads sleep.

A process that has a GPU keeps TensorFlow's default: its threads launch kernels, and a
thread that has to be woken up launches them later.
"""

import tensorflow as tf

from tfdist import _tf


def spins() -> bool:
    """Returns True if idle threads of this process should spin."""
    return bool(tf.config.list_physical_devices("GPU"))


def configure_this_process() -> None:
    """Applies the choice to the threads that TensorFlow creates from now on.

    The threads of the first computation, and of a server, are created only once. Later
    calls have no effect.
    """
    if not spins():
        _tf.disable_thread_spinning()
