"""The simulation of training runs: processors, links and tasks as events."""
