"""pipetrain: an experiment runner for pipeline-parallel training of neural networks."""

__version__ = "0.1.0"
