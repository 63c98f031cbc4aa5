"""Uses of a run's checkpoints: evaluate, export, sample."""
