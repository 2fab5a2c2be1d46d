"""Frames, and what a message from outside must look like before it is read."""
