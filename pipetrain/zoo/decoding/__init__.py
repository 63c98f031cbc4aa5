"""Texts that a whole model generates at an evaluation, and the metrics that compare them with references."""

from pipetrain.zoo.decoding.beam import Generator, SpecialTokens, WholeModel
from pipetrain.zoo.decoding.generation import Generation

__all__ = ["Generation", "Generator", "SpecialTokens", "WholeModel"]
