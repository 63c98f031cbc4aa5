"""Texts that a whole model generates at an evaluation, and the metrics that compare them with references."""

from pipetrain.decoding.beam import DecodingOptions, Generator, SpecialTokens, WholeModel
from pipetrain.decoding.generation import Generation, MetricValue

__all__ = ["DecodingOptions", "Generation", "Generator", "MetricValue", "SpecialTokens", "WholeModel"]
