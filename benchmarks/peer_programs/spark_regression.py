"""Spark MLlib: fits a regression on request. Runs in Spark's own environment.

Each line of input is a request, and each answer a line of JSON: see `answer`. Workers are
threads of one JVM with `local[2]`, and processes with `local-cluster[2,1,1024]`.
"""

import json
import os
import sys
import time
from typing import Any

import numpy as np
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.linalg import Vectors
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame, SparkSession
from regression import REGRESSIONS, loss, make_data

ESTIMATORS = {"linear": LinearRegression, "logistic": LogisticRegression}


def session(master: str) -> SparkSession:
    """Starts Spark."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master)
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def answer(frame: DataFrame, regression: str, iterations: int) -> dict[str, Any]:
    """Fits by at most so many iterations of L-BFGS: each is a pass over the data."""
    estimator = ESTIMATORS[regression](
        maxIter=iterations, tol=0.0, regParam=0.0, fitIntercept=False
    )
    if regression == "linear":
        estimator = estimator.setSolver("l-bfgs")
    began = time.monotonic()
    model = estimator.fit(frame)
    seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "passes": model.summary.totalIterations,
        "w": model.coefficients.toArray().tolist(),
    }


def main(master: str, rows: int, columns: int) -> None:
    """Answers requests until the input ends."""
    spark = session(master)
    frames, data = {}, {}
    for regression in REGRESSIONS:
        data[regression] = make_data(regression, rows, columns)
        pairs = zip(*data[regression], strict=True)
        lines = [(Vectors.dense(x), float(y)) for x, y in pairs]
        frame = spark.createDataFrame(lines, ["features", "label"])
        frames[regression] = frame.repartition(2).cache()
        frames[regression].count()
    for line in sys.stdin:
        request = json.loads(line)
        regression = request["regression"]
        told = answer(frames[regression], regression, request["passes"])
        told["loss"] = loss(regression, np.array(told.pop("w")), data[regression])
        print(json.dumps(told), file=sys.__stdout__, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
