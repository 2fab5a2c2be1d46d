"""Volunteers that lie, each kind in a swarm of its own: what becomes of the run, and of them."""
