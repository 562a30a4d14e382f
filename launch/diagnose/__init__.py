"""What `launch.doctor` looks at, and how it interprets what it sees."""
