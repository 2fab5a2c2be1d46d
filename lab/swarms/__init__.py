"""Swarms of real processes on this machine."""
