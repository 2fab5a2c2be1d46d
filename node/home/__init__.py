"""A node's folder: paths, files, identity, log."""
