"""A toy strategy that sends each step to a worker of a parameter-server cluster."""

import tensorflow as tf

from tfdist.keras.default_driver import DefaultDriver


class OnPS(tf.distribute.ParameterServerStrategy):
    """Keeps variables on the ps, and runs each step on whichever worker is free."""

    def __init__(self):
        super().__init__(tf.distribute.cluster_resolver.TFConfigClusterResolver())
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self)
        with self.scope():
            self.steps = tf.Variable(0, trainable=False, per_worker_variable=True)
        self.fit_driver = Driver(self)

    def proof(self):
        """The steps that each worker has run."""
        return [int(steps) for steps in self.steps.read_all()]


class Driver(DefaultDriver):
    def train_step_function(self, model):
        @tf.function
        def step(x, y):
            self.strategy.steps.assign_add(1)
            self.strategy.run(lambda: model.train_step((x, y)))

        def send(batch):
            self.strategy.coordinator.schedule(step, args=batch)
            return {}

        return send

    def join(self):
        self.strategy.coordinator.join()
