"""`python -m tfdist.mixing`: see `tfdist.mixing.command`."""

import sys

from tfdist.mixing.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
