"""Results on disk, and work that is cut off and goes on."""
