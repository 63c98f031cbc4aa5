"""Runs from Python, and what the command and Python programs share to carry out a run."""
