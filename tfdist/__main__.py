"""The commands of tfdist, of which only the last is part of a cluster.

    python -m tfdist.plan        plans which ps holds each variable of a model
    python -m tfdist.simulate    says how training would go on a cluster you do not have
    python -m tfdist.mixing      compares graphs for gossip
    python -m tfdist.checkpoint  checks whether checkpoints can be read
    python -m tfdist.server      serves as a ps or a worker; python -m launch starts it

Each but the last shows its arguments with --help.
"""

import sys

if __name__ == "__main__":
    print(__doc__, end="")
    sys.exit(0 if sys.argv[1:] in ([], ["--help"]) else 2)
