"""Turns what Hydra composed into the settings of a run. No torch here."""
