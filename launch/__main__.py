"""Lists the commands that start a cluster, and look at one."""

import sys

from tf_config import commands

if __name__ == "__main__":
    print("The commands that start a cluster, and look at one.\n")
    print(commands.listing("launch"))
    print("\nEach shows its flags with --help.")
    sys.exit(0 if sys.argv[1:] in ([], ["--help"]) else 2)
