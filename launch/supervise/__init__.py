"""The process that is the parent of every task of a job on this machine."""
