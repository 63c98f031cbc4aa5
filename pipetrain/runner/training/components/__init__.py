"""The objects of a run by subject: built from settings, and checked before the run starts."""
