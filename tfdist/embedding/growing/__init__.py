"""Embedding tables that grow: a row is created when its id is first seen."""
