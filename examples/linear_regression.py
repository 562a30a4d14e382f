"""Linear regression in TensorFlow 1 style: one program that every task runs.

A whole cluster on this machine, with a separate chief:

    tfdist local --num_ps=2 --num_workers=2 --program=every_task \
        examples/linear_regression.py

One command per task, on any hosts; worker 0 is the chief:

    HOSTS="--ps_hosts=p0:2222,p1:2222 --worker_hosts=w0:2222,w1:2222,w2:2222"
    python examples/linear_regression.py $HOSTS --job_name=ps --task_index=0

The ps hold the variables. Workers train asynchronously, or synchronously with --sync.
When all workers are done, every task exits, the ps too. To restart a killed task, run its
command again: the chief writes checkpoints.
"""

import os
import sys
import tempfile
import time
from typing import NamedTuple

import tensorflow as tf
from absl import app, flags, logging

import tf_config
import tfdist
from tfdist.server import start_server

tf1 = tf.compat.v1
WEIGHT, BIAS = 0.1, 0.3

FLAGS = flags.FLAGS
flags.DEFINE_enum("job_name", None, ["ps", "worker"], "Job of this task.")
flags.DEFINE_integer("task_index", None, "Index of this task in its job.")
flags.DEFINE_list("ps_hosts", [], "Addresses of the ps, host:port,host:port.")
flags.DEFINE_list(
    "worker_hosts", [], "Addresses of the workers; the first is the chief."
)
flags.DEFINE_integer("steps", 500, "Total steps of all workers.", lower_bound=1)
flags.DEFINE_integer("batch_size", 100, "Points per step and worker.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate", 0.1, "Learning rate of gradient descent.", lower_bound=0.0
)
flags.DEFINE_boolean("sync", False, "Train synchronously.")
flags.DEFINE_integer(
    "replicas_to_aggregate",
    None,
    "With --sync, how many workers' gradients make one step; the other workers are "
    "backups. Default: all workers.",
)
flags.DEFINE_string(
    "checkpoint_dir",
    None,
    "Directory in which the chief writes checkpoints, and from which it resumes.",
)
flags.DEFINE_integer("save_steps", 100, "Steps between checkpoints.", lower_bound=1)
flags.DEFINE_float(
    "step_seconds", 0.0, "Seconds to sleep in each step.", lower_bound=0.0
)


class UsageError(ValueError):
    """Wrong flags, or a wrong TF_CONFIG."""


class Role(NamedTuple):
    """The cluster, and which of its tasks this process is."""

    cluster: dict[str, list[str]]
    task: tf_config.Task

    @property
    def trainers(self) -> list[tf_config.Task]:
        """The tasks that train, the chief first."""
        return [
            tf_config.Task(job, index)
            for job in ("chief", "worker")
            for index in range(len(self.cluster.get(job, [])))
        ]

    @property
    def is_chief(self) -> bool:
        """Whether this task initializes the variables and writes checkpoints."""
        return self.task == self.trainers[0]


def role_from_environment() -> Role:
    """Reads TF_CONFIG, as launch.local and launch.task set it."""
    config = tf_config.TFConfig.from_environment()
    if config.task.job == "evaluator":
        raise UsageError("this program has no evaluator: start it as ps or worker")
    cluster = config.cluster.cluster_spec()
    if "ps" not in cluster:
        raise UsageError("the cluster of TF_CONFIG has no ps, for the variables")
    return Role(cluster, config.task)


def role_from_flags() -> Role:
    """Reads the flags that name the cluster and this task."""
    for name in ("job_name", "task_index", "ps_hosts", "worker_hosts"):
        if FLAGS[name].value in (None, []):
            raise UsageError(
                f"--{name} is missing: give all of --job_name, --task_index, "
                "--ps_hosts and --worker_hosts, or start the program with launch.local"
            )
    cluster = {"ps": FLAGS.ps_hosts, "worker": FLAGS.worker_hosts}
    addresses = FLAGS.ps_hosts + FLAGS.worker_hosts
    for address in addresses:
        tf_config.split_address(address)
        if addresses.count(address) > 1:
            raise UsageError(f"two tasks have the address {address}: give each its own")
    size = len(cluster[FLAGS.job_name])
    if not 0 <= FLAGS.task_index < size:
        raise UsageError(
            f"--task_index={FLAGS.task_index} is not that of a {FLAGS.job_name}: "
            f"--{FLAGS.job_name}_hosts has {size}, counted from 0"
        )
    return Role(cluster, tf_config.Task(FLAGS.job_name, FLAGS.task_index))


def role() -> Role:
    """Returns the role from the flags, or from TF_CONFIG if there are none."""
    given = [name for name in ("job_name", "task_index") if FLAGS[name].present]
    given += [name for name in ("ps_hosts", "worker_hosts") if FLAGS[name].present]
    if given and "TF_CONFIG" in os.environ:
        raise UsageError(
            f"both --{given[0]} and TF_CONFIG say which task this is: remove the flag, "
            "or unset TF_CONFIG"
        )
    return role_from_flags() if given else role_from_environment()


def check(me: Role) -> None:
    """Checks the flags against the cluster, before a server starts."""
    enough, workers = FLAGS.replicas_to_aggregate, len(me.trainers)
    if enough is not None and not FLAGS.sync:
        raise UsageError("--replicas_to_aggregate is for --sync: set that too")
    if enough is not None and not 1 <= enough <= workers:
        raise UsageError(
            f"--replicas_to_aggregate={enough} must be from 1 to the number of workers, "
            f"{workers} (including the chief)"
        )
    if me.is_chief and FLAGS.checkpoint_dir:
        try:
            os.makedirs(FLAGS.checkpoint_dir, exist_ok=True)
            with tempfile.TemporaryFile(dir=FLAGS.checkpoint_dir):
                pass
        except OSError as error:
            raise UsageError(
                f"--checkpoint_dir={FLAGS.checkpoint_dir} cannot be written: "
                f"{error.strerror}"
            ) from error


def train(server: tf.distribute.Server, me: Role) -> None:
    """Trains until the workers have run --steps steps in total."""
    setter = tf1.train.replica_device_setter(
        cluster=me.cluster,
        worker_device=me.task.device,
        ps_strategy=tfdist.GreedyLoadBalancing(num_tasks=len(me.cluster["ps"])),
    )
    with tf.Graph().as_default(), tf1.device(setter):
        global_step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("weight", (), initializer=tf1.zeros_initializer())
        bias = tf1.get_variable("bias", (), initializer=tf1.zeros_initializer())
        x = tf.random.uniform([FLAGS.batch_size], -1.0, 1.0)
        error = weight * x + bias - (WEIGHT * x + BIAS)
        optimizer = tf1.train.GradientDescentOptimizer(FLAGS.learning_rate)
        last_values = tf1.train.FinalOpsHook([global_step, weight, bias])
        hooks = [tf1.train.StopAtStepHook(last_step=FLAGS.steps), last_values]
        if FLAGS.sync:
            optimizer = tfdist.low_level.SyncReplicasOptimizer(
                optimizer,
                FLAGS.replicas_to_aggregate or len(me.trainers),
                total_num_replicas=len(me.trainers),
                replica=me.trainers.index(me.task),
            )
        train_op = optimizer.minimize(tf.reduce_mean(error**2), global_step)
        if FLAGS.sync:
            hooks.append(optimizer.make_session_run_hook(me.is_chief))
        # With a Saver of our own the chief writes one file. By default each ps would
        # write a shard, on its own disk.
        scaffold = tf1.train.Scaffold(saver=tf1.train.Saver())
        tfdist.low_level.wait_until_ready(server)
        with tf1.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=me.is_chief,
            checkpoint_dir=FLAGS.checkpoint_dir,
            scaffold=scaffold,
            hooks=hooks,
            save_checkpoint_steps=FLAGS.save_steps,
            save_summaries_steps=None,
            config=tfdist.low_level.session_config(server),
        ) as session:
            steps = 0
            while not session.should_stop():
                _, step = session.run([train_op, global_step])
                steps += 1
                logging.log_every_n_seconds(
                    logging.INFO, "step %d, %d steps here", 1.0, step, steps
                )
                if FLAGS.step_seconds:
                    time.sleep(FLAGS.step_seconds)
    step, weight, bias = last_values.final_ops_values
    print(f"step {step}: weight {weight:.4f}, bias {bias:.4f}, {steps} steps here")


def main(_: list[str]) -> None:
    """Runs this task."""
    tf.get_logger().setLevel("ERROR")  # TensorFlow repeats what absl prints.
    try:
        me = role()
        check(me)
        server = start_server(me.cluster, me.task)
        if me.task.job == "ps":
            tfdist.low_level.serve_until_done(server)
        else:
            train(server, me)
            tfdist.low_level.report_done(server)
    except (
        UsageError,
        tf_config.ClusterError,
        tfdist.errors.StartupTimeoutError,
    ) as error:
        print(f"linear_regression: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    app.run(main)
