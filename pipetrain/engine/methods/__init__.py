"""Methods against weight staleness, one file each: they decide which weights a stage reads."""

from pipetrain.engine.methods.base import Method

__all__ = ["Method"]
