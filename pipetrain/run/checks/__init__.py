"""Checks of a run whose objects could all be built; each returns notes for the user, or raises ConfigError."""
