"""Turns settings into the objects of a run."""
