"""`ftnode lab recovery --long`: what a loss costs in learning, in runs of 10,000 iterations."""
