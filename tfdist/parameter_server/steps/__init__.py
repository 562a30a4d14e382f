"""The steps of a model: traced once, sent to the workers, and followed until they end."""
