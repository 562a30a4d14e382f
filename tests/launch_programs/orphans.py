"""A chief that leaves as many processes behind as it can, and then waits.

Arguments: what each of them has on its command line, to be found by, and seconds.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

if __name__ == "__main__":
    mark, seconds = sys.argv[1], float(sys.argv[2])
    # A session of its own, and nothing of ours in its environment.
    subprocess.Popen([*SLEEP, mark], start_new_session=True, env={})
    # An orphan from the beginning: its parent is gone at once.
    subprocess.run(["sh", "-c", f'setsid "$@" {mark} & exit', "sh", *SLEEP], check=True)
    multiprocessing.Process(target=time.sleep, args=(600,), daemon=True).start()
    # One that will not be told.
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execv(sys.executable, [*SLEEP, mark])
    print("ready", flush=True)
    time.sleep(seconds)
