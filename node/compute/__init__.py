"""The compute process, which alone loads torch, and the node's side of it."""
