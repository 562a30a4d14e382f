"""The command `python -m tfdist.plan`: plans which ps holds each variable.

Programs call the function `tfdist.plan`; this file is only the command.
"""

import sys

from tfdist.planning.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
