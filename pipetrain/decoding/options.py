"""How an evaluation decodes: the settings of the search, and where and for whom it works."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

_CPU = torch.device("cpu")


def _ignore_words(_description: str) -> None:
    pass


def _ignore_texts(_texts: Sequence[str], _references: Sequence[Sequence[str]]) -> None:
    pass


@dataclass(frozen=True)
class DecodingOptions:
    """How to decode.

    Attributes:
        beam_width: hypotheses of a sample that are followed side by side; 1 is greedy search.
        length_penalty: the exponent α by which longer texts are favored; 0 compares sums of log-probabilities.
        length_penalty_form: `fairseq` divides by length^α, `gnmt` by ((5 + length) / 6)^α (Wu et al. 2016, eq. 14).
        batch_size: samples that are decoded together.
        limit: samples at most; None: all.
        device: where the model is.
        on_progress: told in words what is decoded.
        on_texts: told the texts that were generated, and the references of each.
    """

    beam_width: int = 5
    length_penalty: float = 1.0
    length_penalty_form: str = "fairseq"
    batch_size: int = 64
    limit: int | None = None
    device: torch.device = _CPU
    on_progress: Callable[[str], None] = _ignore_words
    on_texts: Callable[[Sequence[str], Sequence[Sequence[str]]], None] = _ignore_texts

    def divisor(self, length: int) -> float:
        """What the log-probability of a text of so many tokens, the end included, is divided by."""
        base = length if self.length_penalty_form == "fairseq" else (5 + length) / 6
        return float(base**self.length_penalty)

    @property
    def search(self) -> str:
        """The search in words, as a record of a metric needs it."""
        if self.beam_width == 1:
            return "greedy"
        return f"beam:{self.beam_width}|length_penalty:{self.length_penalty:g}|form:{self.length_penalty_form}"
