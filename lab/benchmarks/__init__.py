"""Benchmarks of whole swarms."""
