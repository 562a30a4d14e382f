"""What a variable is on a ps: in one piece or in shards, written without losses."""
