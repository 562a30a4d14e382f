"""What a function that `strategy.run` gets may do: each case has a step and its result."""

import keras
import tensorflow as tf


def written(strategy):
    """Returns a step that adds to a variable, its result, and that of n replicas."""
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    def step(x):
        if x > 0:  # AutoGraph has to convert it.
            x = x + 1.0
        total.assign_add(x * 1.0)

    return step, lambda _: total.numpy(), lambda n: 3 * 2.0 * n


def reduced(strategy):
    """Returns a step that adds up numbers, the last sum, and that of n replicas."""

    def step(x):
        if x > 0:
            x = x + 1.0
        return tf.distribute.get_replica_context().all_reduce("SUM", x)

    def result(last):
        return strategy.experimental_local_results(last)[0].numpy()

    return step, result, lambda n: 2.0 * n


def applied(strategy):
    """Returns a step of an optimizer, the weight, and the weight on n replicas."""
    with strategy.scope():
        weight = keras.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.25)
        optimizer.build([weight])

    def step(x):
        if x > 0:
            x = x * 2.0
        optimizer.apply([x], [weight])

    return step, lambda _: float(weight.numpy()), lambda n: 1.0 - 3 * 0.5 * n


UPDATES = {each.__name__: each for each in (written, reduced, applied)}


def after_three(run, result):
    """Returns the result of a step that was run three times."""
    for _ in range(3):
        last = run(tf.constant(1.0))
    return result(last)
