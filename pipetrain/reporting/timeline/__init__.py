"""Timelines: when each stage does what, by its operation list and as it was traced."""
