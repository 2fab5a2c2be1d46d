"""Benchmarks of single parts: links, sums, snapshots, data, dashboard."""
