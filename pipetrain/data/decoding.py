"""Options of metrics that a data set computes from texts of the whole model, and their values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class DecodingOptions:
    """Options of decoding.

    Attributes:
        beam_width: hypotheses of a sample that are followed in parallel; 1 is greedy search.
        length_penalty: the exponent α by which longer texts are favored; 0 compares sums of log-probabilities.
        length_penalty_form: `fairseq` divides by length^α, `gnmt` by ((5 + length) / 6)^α (Wu et al. 2016, eq. 14).
        limit: samples at most; None: all.
        on_progress: called with a description of what is decoded.
        on_texts: called with the generated texts and the references of each.
    """

    beam_width: int = 5
    length_penalty: float = 1.0
    length_penalty_form: str = "fairseq"
    batch_size: int = 64
    limit: int | None = None
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    on_progress: Callable[[str], None] = lambda _description: None
    on_texts: Callable[[Sequence[str], Sequence[Sequence[str]]], None] = lambda _texts, _references: None

    def divisor(self, length: int) -> float:
        """Divisor of the log-probability of a text of `length` tokens, the end included."""
        base = length if self.length_penalty_form == "fairseq" else (5 + length) / 6
        return float(base**self.length_penalty)

    @property
    def search(self) -> str:
        """The search in words, as a record of a metric needs it."""
        if self.beam_width == 1:
            return "greedy"
        return f"beam:{self.beam_width}|length_penalty:{self.length_penalty:g}|form:{self.length_penalty_form}"


class MetricValue(NamedTuple):
    """A metric's value, and how it was computed: the library's version and settings."""

    value: float
    signature: str
