"""Jobs on this machine: made, started, watched, and functions run on them."""
