"""Decisions: who owns what, when a step counts, how a stage is rebuilt. Pure; see participant.py."""
