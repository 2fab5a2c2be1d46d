"""One attempt at a step: routes, work, boundary tensors, sums of a stage's group."""
