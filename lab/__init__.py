"""Experiments and benchmarks on the same code: demo, audit, replay and the measurements of docs/performance.md."""
