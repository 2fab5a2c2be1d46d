"""Manifests that are signed, fetched, spread and joined."""
