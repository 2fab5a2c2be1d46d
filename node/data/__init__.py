"""Training data: building shards, storing and lending them."""
