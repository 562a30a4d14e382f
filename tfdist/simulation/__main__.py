"""`python -m tfdist.simulation`: see `tfdist.simulation.command`."""

import sys

from tfdist.simulation.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
