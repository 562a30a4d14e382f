"""Be killed in the first life and leave a child; look for it in the second."""

import os
import subprocess
from pathlib import Path

lives = len(os.listdir("lives"))
Path("lives", str(lives)).touch()
if lives == 0:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path("child").write_text(str(child.pid))
    os.kill(os.getpid(), 9)
pid = int(Path("child").read_text())
print("child", os.path.exists(f"/proc/{pid}"), flush=True)
