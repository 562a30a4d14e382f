"""Support for TF1-style programs: graph mode, and every task runs the script."""
