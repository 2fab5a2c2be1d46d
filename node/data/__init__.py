"""Training data: building shards, fetching, checking and lending them. The order: docs/explanation/data.md."""
