"""Common parts of strategies whose program runs on every worker.

The workers agree on models, arguments and the order of data (`agreement`, `shuffle`), each
takes its share of the data (`shares`, `input`), and the chief alone writes (`callbacks`).
"""
