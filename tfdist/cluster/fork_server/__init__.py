"""A process that imports TensorFlow once, and forks the tasks of a job on this machine.

    python -m tfdist.cluster.fork_server SOCKET

The launcher starts it and asks it for tasks; see `ForkRequest` in `tf_config.contract`. A
forked task looks to its program like a fresh interpreter that has not imported anything
yet, except that its imports take no time.
"""
