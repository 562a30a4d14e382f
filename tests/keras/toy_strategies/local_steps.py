"""A toy strategy whose tasks take some local steps each, and then average models."""

import tensorflow as tf

from tfdist.keras.default_driver import DefaultDriver


class LocalSteps(tf.distribute.OneDeviceStrategy):
    """Keeps a model on each task; every few steps, all become their mean."""

    def __init__(self):
        self.peers = tf.distribute.MultiWorkerMirroredStrategy()
        super().__init__(self.peers.extended.worker_devices[0])
        self.distances = []
        self.fit_driver = Driver(self)

    def proof(self):
        """How far this model was from the mean when it was averaged, each time."""
        return self.distances


class Driver(DefaultDriver):
    every, steps_run = 4, 0

    def data(self, adapter):
        peers = self.strategy.peers
        tasks, here = peers.num_replicas_in_sync, peers.cluster_resolver.task_id
        return adapter.get_tf_dataset().shard(tasks, here)

    def train_step_function(self, model):
        @tf.function
        def step(*batch):
            return self.strategy.run(model.train_step, args=(batch,))

        def run(batch):
            logs = step(*batch)
            self.steps_run += 1
            if self.steps_run % self.every == 0:
                self.average(model.trainable_variables)
            return logs

        return run

    def average(self, variables):
        values = [tf.constant(each.numpy()) for each in variables]
        means = self.mean_of_all(values)
        distances = [tf.norm(a - b) for a, b in zip(values, means, strict=True)]
        self.strategy.distances.append(float(max(distances)))
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    def mean_of_all(self, values):
        @tf.function
        def on_replica():
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(tf.distribute.ReduceOp.MEAN, values)

        return self.strategy.peers.run(on_replica)
