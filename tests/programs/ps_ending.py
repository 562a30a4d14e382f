"""A ps and two of three workers, which end one after the other."""

import logging
import sys
import threading

import tensorflow as tf

from launch.network import ports
from tfdist.low_level.ending import report_done, serve_until_done

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
addresses = [f"127.0.0.1:{port}" for port in ports.pick(5)]
cluster = {"ps": addresses[:2], "worker": addresses[2:]}


def server(job, index):
    return tf.distribute.Server(cluster, job_name=job, task_index=index)


def serve(ps):
    print("missing", serve_until_done(ps, patience=20.0))


ps, workers = server("ps", 0), [server("worker", i) for i in range(2)]
try:
    serve_until_done(workers[0])
except ValueError as error:
    print(error)
thread = threading.Thread(target=serve, args=[ps])
thread.start()
for worker in reversed(workers):  # nobody has started ps:1 and worker:2
    report_done(worker, timeout=5.0)
    print("serves" if thread.is_alive() else "ended", flush=True)
thread.join()
