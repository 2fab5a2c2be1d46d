"""A run's manifest: its text, its sections, its author's signature."""
