"""Who waits for whom, until when, and what is said when the wait is over."""
