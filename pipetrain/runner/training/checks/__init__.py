"""Checks of a run whose objects could all be built; they yield notes for the user, or raise ConfigError."""
