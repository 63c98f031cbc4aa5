"""Data sets of sentences and their translations."""
