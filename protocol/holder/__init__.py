"""What a peer does with its own stages, and how it comes, is heard and goes."""
