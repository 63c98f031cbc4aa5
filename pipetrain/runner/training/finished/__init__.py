"""Uses of a run's checkpoints: evaluate and export."""
