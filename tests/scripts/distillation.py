"""A student learns from a teacher that was trained before, in two `fit`s."""

import keras
import numpy as np
from keras import layers, ops

SAME_WEIGHTS = True
WITHIN = 0.15


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.temperature = 3.0

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return 0.3 * student_loss + 0.7 * distillation_loss

    def call(self, x):
        return self.student(x)


def classifier(units, name):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(units, "tanh"), layers.Dense(3)], name=name
    )


def main(strategy, directory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 6)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    data = {"batch_size": 32, "shuffle": False, "verbose": 0}
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    with strategy.scope():
        teacher = classifier(32, "teacher")
        teacher.compile(
            keras.optimizers.Adam(0.02),
            crossentropy,
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    teacher.fit(x, y, epochs=5, **data)
    teacher.trainable = False

    with strategy.scope():
        distiller = Distiller(student=classifier(8, "student"), teacher=teacher)
        distiller.compile(
            optimizer=keras.optimizers.SGD(0.2),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            student_loss_fn=crossentropy,
            distillation_loss_fn=keras.losses.KLDivergence(),
        )
    distiller.fit(x, y, epochs=5, **data)
    found = distiller.evaluate(x, y, return_dict=True, verbose=0)
    return {"accuracy": found["accuracy"]}, distiller.student, teacher
