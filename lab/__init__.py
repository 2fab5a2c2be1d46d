"""Experiments and benchmarks on the same code: demo, audit, replay, and what docs/reference/performance.md measures."""
