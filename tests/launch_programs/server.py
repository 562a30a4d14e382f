"""Stands in for `tfdist.server`: listens on its address, and starts at once.

The environment can make one task misbehave: SILENT_SERVER never listens,
DYING_SERVER exits with status 7, and FAILING_SERVER does so once a file `fail` is
there. Each is the name of a task, such as `ps:0`.
"""

import json
import os
import socket
import sys
import time

config = json.loads(os.environ["TF_CONFIG"])
job, index = config["task"]["type"], config["task"]["index"]
name = f"{job}:{index}"
port = int(config["cluster"][job][index].rpartition(":")[2])
print(f"hello from {name}")
if os.environ.get("DYING_SERVER") == name:
    print("last words", file=sys.stderr)
    sys.exit(7)
if os.environ.get("SILENT_SERVER") != name:
    listener = socket.socket()
    listener.bind(("", port))
    listener.listen()
while not (os.environ.get("FAILING_SERVER") == name and os.path.exists("fail")):
    time.sleep(0.05)
sys.exit(7)
