"""The commands that start a cluster, and look at one.

    python -m launch.local       runs a cluster on this machine
    python -m launch.ssh         runs a cluster on hosts that ssh can reach
    python -m launch.slurm       runs a cluster on the nodes of a Slurm job
    python -m launch.kubernetes  runs a cluster as pods of Kubernetes
    python -m launch.ray         runs a cluster on the nodes of a Ray cluster
    python -m launch.task        starts one task of a cluster on this host
    python -m launch.jobs        looks at the jobs that were started from this machine
    python -m launch.doctor      asks what is wrong with a cluster
    python -m launch.speedup     measures how training speeds up with more workers
    python -m launch.chaos       breaks tasks on purpose while a script trains

Each shows its flags with --help.
"""

import sys

if __name__ == "__main__":
    print(__doc__, end="")
    sys.exit(0 if sys.argv[1:] in ([], ["--help"]) else 2)
