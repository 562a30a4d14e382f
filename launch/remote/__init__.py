"""What runs on the hosts of a job, and how it gets there."""
