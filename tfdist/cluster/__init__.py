"""Membership in a cluster, startup, and the health of its servers."""
