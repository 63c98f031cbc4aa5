"""Runs compared, as tables, figures and pages: reports, timelines and comparisons of methods.

Imports the engine and the runner, but not the planning.
"""
