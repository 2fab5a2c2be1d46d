"""The trained model, taken out of a swarm into a folder."""
