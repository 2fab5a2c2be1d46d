"""Swarms on the lines that volunteers have."""
