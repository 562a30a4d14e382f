"""Variables on the ps, in one piece or in shards, written without losses."""
