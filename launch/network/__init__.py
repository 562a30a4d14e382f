"""Ports, links and namespaces: who reaches a job, and through what."""
