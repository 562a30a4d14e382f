"""One replica's part of a step, so that all parts together are the whole batch's."""
