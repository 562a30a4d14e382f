"""Embedding tables whose rows are sharded over parameter servers."""
