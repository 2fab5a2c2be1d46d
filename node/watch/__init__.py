"""Watching a run: status, history, metrics, dashboard, health."""
