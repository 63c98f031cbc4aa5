"""Turns what Hydra composed into the settings of a run. No torch here.

A method `of` reads a section, and raises a ConfigError for the first value that is missing or cannot work.
"""
