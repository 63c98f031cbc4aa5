"""Texts that a whole model generates at an evaluation, and the metrics that compare them with references."""

from pipetrain.decoding.beam import DecodingOptions, Generator, SpecialTokens, WholeModel
from pipetrain.decoding.generation import Generation
from pipetrain.decoding.metrics import MetricValue

__all__ = ["DecodingOptions", "Generation", "Generator", "MetricValue", "SpecialTokens", "WholeModel"]
