"""Ports, links and namespaces: who can reach a job, and how."""
