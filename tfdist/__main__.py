"""Lists the commands of tfdist."""

import sys

from tf_config import commands

if __name__ == "__main__":
    print("The commands of tfdist, of which only the last is part of a cluster.\n")
    print(commands.listing("tfdist"))
    print("\nEach but the last shows its arguments with --help.")
    sys.exit(0 if sys.argv[1:] in ([], ["--help"]) else 2)
