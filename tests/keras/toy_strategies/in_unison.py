"""A toy strategy whose tasks all run the script, and take every step together."""

import tensorflow as tf

from tfdist.keras.default_driver import DefaultDriver


class InUnison(tf.distribute.MultiWorkerMirroredStrategy):
    """Keeps a copy of each variable on every task, and adds up their gradients."""

    def __init__(self):
        super().__init__()
        self.fit_driver = Driver(self)

    def proof(self):
        """The replicas that take part in a step, and the train steps so far."""
        return [self.num_replicas_in_sync, self.fit_driver.steps_run]


class Driver(DefaultDriver):
    in_unison = True
    steps_run = 0

    def data(self, adapter):
        tasks = self.strategy.num_replicas_in_sync
        here = self.strategy.cluster_resolver.task_id
        return adapter.get_tf_dataset().shard(tasks, here)

    def train_step_function(self, model):
        mean = tf.distribute.ReduceOp.MEAN

        @tf.function
        def step(batch):
            logs = self.strategy.run(model.train_step, args=(batch,))
            return {
                name: self.strategy.reduce(mean, value, axis=None)
                for name, value in logs.items()
            }

        def run(batch):
            logs = step(batch)
            self.steps_run += 1
            return logs

        return run
