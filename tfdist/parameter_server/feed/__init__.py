"""The batches of a dataset: where they come from, and how they get to the workers."""
