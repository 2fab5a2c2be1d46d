"""Sums of gradients in a stage's group."""
