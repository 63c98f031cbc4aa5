"""What can be done with the checkpoints of a run: evaluate, export, sample."""
