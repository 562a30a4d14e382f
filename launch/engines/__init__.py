"""What starts the tasks of a job on several hosts: one module per engine, the same verbs."""
