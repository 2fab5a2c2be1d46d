"""Signs of life, and deadlines that adapt to measured times."""
