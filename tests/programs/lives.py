"""Count how often it was started, and sleep in the first lives: LIVES."""

import os
import sys
import time
from pathlib import Path

lives = len(os.listdir("lives"))
Path("lives", str(lives)).touch()
print("life", lives, flush=True)
os.write(int(os.environ["LAUNCH_REPORT_FD"]), b'{"event": "training"}\n')
if lives < int(sys.argv[1]):
    time.sleep(600)
