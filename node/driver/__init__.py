"""Carries out what the core decides, and records it."""
