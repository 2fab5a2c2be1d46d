"""The planner against its rivals, in a simulation of failures."""
