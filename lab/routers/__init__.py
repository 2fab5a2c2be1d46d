"""Volunteers behind routers."""
