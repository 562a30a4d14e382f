"""Programs that run on the hosts of a job, and how they get there."""
