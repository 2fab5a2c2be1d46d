"""Tensors: the model, its stages, their optimiser, blending and data. Knows torch and nothing of the swarm."""
