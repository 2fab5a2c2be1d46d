"""A hostile peer, and what its attacks do to a swarm on this machine."""
