"""Analysis of how a traced step's results on a replica relate to the whole batch."""
