"""Checkpoints of a run: their files, how they are written and restored, which are kept."""
