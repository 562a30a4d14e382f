#!/usr/bin/env python3
"""Stands in for ssh: every host is this machine.

`hosts.json` beside this file says, by the name of a host, what is different there:
`refuse` (its message), `hang`, or variables of its environment under `env`.
"""

import json
import os
import sys
import time
from pathlib import Path

if "-G" in sys.argv:
    print(f"user nobody\nhostname {sys.argv[-1].replace('h', '10.0.0.')}")
    sys.exit()
*_, dashes, host, line = sys.argv
assert dashes == "--", sys.argv
hosts = json.loads(Path(__file__).with_name("hosts.json").read_text())
special = hosts.get(host, {})
if "refuse" in special:
    print(special["refuse"], file=sys.stderr)
    sys.exit(255)
if "hang" in special:
    time.sleep(600)
shell = ["sh", "-c", line]
os.execvpe("sh", shell, {**os.environ, "HOST": host, **special.get("env", {})})
