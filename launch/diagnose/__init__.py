"""What is wrong with a cluster: what the doctor finds, and what it makes of it."""
