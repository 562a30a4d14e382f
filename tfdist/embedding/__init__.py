"""Embedding tables that are spread over parameter servers."""
