"""Texts that a whole model generates at an evaluation, and the metrics that compare them with references."""

from pipetrain.decoding.generation import Generation
from pipetrain.decoding.generator import Generator, WholeModel
from pipetrain.decoding.marks import Marks
from pipetrain.decoding.measured import MetricValue
from pipetrain.decoding.options import DecodingOptions

__all__ = ["DecodingOptions", "Generation", "Generator", "Marks", "MetricValue", "WholeModel"]
