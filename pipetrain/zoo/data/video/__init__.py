"""Data sets of videos with captions."""
