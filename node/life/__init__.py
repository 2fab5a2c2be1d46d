"""A node from its start to its end."""
