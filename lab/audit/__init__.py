"""Whether a swarm kept its promises, from its traces."""
