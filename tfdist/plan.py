"""python -m tfdist.plan: plans where a model's variables live, before any cluster.

In code it is the function `tfdist.plan`; this file is the command alone.
"""

import sys

from tfdist.planning.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
