"""Which weights a stage reads: one small file for each cure of weight staleness."""

from pipetrain.methods.base import Method

__all__ = ["Method"]
