"""Snapshots on this machine's disk."""
