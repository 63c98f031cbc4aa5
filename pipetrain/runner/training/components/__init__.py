"""The objects of a run by subject: built from settings, and checked before the run starts.

A function `build_...` raises a ConfigError if a target refuses an option, or returns something else. A function
`check_...` raises a ConfigError for the first setting that cannot work; what it returns are notes for the user, one
line each.
"""
