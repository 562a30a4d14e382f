"""Lists the commands that start a cluster, and look at one; runs the one that is named."""

import sys

from launch import entry_point
from tf_config import commands

if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--help"]):
        sys.exit(entry_point.main())
    print("The commands that start a cluster, and look at one.\n")
    print(commands.listing("launch"))
    print("\nEach shows its flags with --help.")
