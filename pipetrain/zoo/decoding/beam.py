"""Beam search: the most probable texts that a model generates, a whole minibatch side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pipetrain.data.decoding import DecodingOptions
from pipetrain.engine.tensors import Tensors


class Generator(Protocol):
    """An encoder and decoder whose state between two tokens is a tuple of tensors, samples in dimension 0 of each.

    The search repeats, reorders and drops the rows of all of them alike.
    """

    def begin(self, *source: Tensor) -> Tensors:
        """The state before the first token, given the encoder's padded inputs (n, positions, …)."""

    def step(self, tokens: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """The logits of the next token (n, vocabulary) after the latest tokens (n,), and the state then."""


class WholeModel(Protocol):
    """An assembled model in evaluation mode; its module has the weights of all stages."""

    module: nn.Module

    def __call__(self, *tensors: Tensor) -> Any:
        """Output of the last layer for these inputs of the first."""


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of a vocabulary that stand for no text; a decoder reads `beginning` first."""

    beginning: int
    end: int
    padding: int = 0


@torch.no_grad()
def beam_search(
    model: Generator, source: Tensors, special: SpecialTokens, longest: Sequence[int], options: DecodingOptions
) -> list[list[int]]:
    """The best text of each sample: its token ids, without special ones.

    Each step extends every hypothesis by every token and keeps the `beam_width` most probable ones that go on. Those
    among the first `beam_width` that end are finished; a sample is done when it has that many. The best of them is the
    one with the highest log-probability after the length penalty. As in fairseq, the longest text must end.

    The source has the encoder's inputs (n, positions, …), and `longest` the most tokens of each sample's text.
    """
    beams = _Beams(longest, special, options)
    state = model.begin(*source)
    state = _rows(state, beams.samples.repeat_interleave(options.beam_width).to(state[0].device))
    while len(beams.samples):
        logits, state = model.step(beams.latest.to(state[0].device), state)
        state = _rows(state, beams.extend(logits).to(state[0].device))
    return [finished.text for finished in beams.finished]


def _rows(state: Tensors, rows: Tensor) -> Tensors:
    return tuple(tensor.index_select(0, rows) for tensor in state)


@dataclass
class _Finished:
    """The finished texts of one sample: their number, and the best so far."""

    count: int = 0
    score: float = -math.inf
    text: list[int] = field(default_factory=list)

    def add(self, score: float, text: list[int]) -> None:
        self.count += 1
        if score > self.score:
            self.score, self.text = score, text


class _Beams:
    """The hypotheses of the samples that are not done, `beam_width` rows of each one after the other."""

    def __init__(self, longest: Sequence[int], special: SpecialTokens, options: DecodingOptions) -> None:
        count = len(longest)
        self._special = special
        self._options = options
        self._longest = torch.tensor(longest)
        self.finished = [_Finished() for _ in longest]
        self.samples = torch.arange(count)
        """The samples that are not done."""
        width = options.beam_width
        self._texts = torch.empty(count, width, 0, dtype=torch.int64)
        # all hypotheses of a sample are equal before the first token: only one may be chosen
        self._scores = torch.full((count, width), -math.inf)
        self._scores[:, 0] = 0.0
        self.latest = torch.full((count * width,), special.beginning)
        """The last token of each row."""

    def extend(self, logits: Tensor) -> Tensor:
        """Extends the hypotheses by a token of these logits (rows, vocabulary); the row that each one continues."""
        width, vocabulary = self._options.beam_width, logits.shape[1]
        at_end = self._longest[self.samples] <= self._texts.shape[2]
        scores = self._next_scores(logits, at_end).view(len(self.samples), -1)
        best, index = scores.topk(min(2 * width, scores.shape[1]))
        beams, tokens = index // vocabulary, index % vocabulary
        ends = tokens.eq(self._special.end)
        self._finish(best[:, :width], beams[:, :width], ends[:, :width])
        going, order = best.masked_fill(ends, -math.inf).topk(width)
        return self._continue(going, beams.gather(1, order), tokens.gather(1, order), at_end)

    def _next_scores(self, logits: Tensor, at_end: Tensor) -> Tensor:
        """The log-probability of each hypothesis with each token after it, (samples, width, vocabulary)."""
        log_probabilities = logits.float().log_softmax(1).cpu().view(*self._scores.shape, -1)
        tokens = torch.arange(logits.shape[1])
        never = tokens.eq(self._special.beginning) | tokens.eq(self._special.padding)
        impossible = never | (at_end[:, None] & tokens.ne(self._special.end))
        return self._scores[:, :, None] + log_probabilities.masked_fill(impossible[:, None], -math.inf)

    def _finish(self, scores: Tensor, beams: Tensor, ends: Tensor) -> None:
        """Notes the hypotheses that end; impossible ones, or ones with NaN scores, are not counted."""
        divisor = self._options.divisor(self._texts.shape[2] + 1)
        for sample, column in (ends & scores.isfinite()).nonzero().tolist():
            text = self._texts[sample, int(beams[sample, column])].tolist()
            self.finished[int(self.samples[sample])].add(scores[sample, column].item() / divisor, text)

    def _continue(self, scores: Tensor, beams: Tensor, tokens: Tensor, at_end: Tensor) -> Tensor:
        """Keeps these hypotheses of the samples that are not done."""
        width = self._options.beam_width
        done = torch.tensor([self.finished[sample].count >= width for sample in self.samples.tolist()])
        left = (~(done | at_end)).nonzero().flatten()
        rows = (torch.arange(len(self.samples))[:, None] * width + beams)[left].flatten()
        earlier = self._texts.flatten(0, 1)[rows]
        self.latest = tokens[left].flatten()
        self._texts = torch.cat([earlier, self.latest[:, None]], 1).unflatten(0, (len(left), width))
        self._scores, self.samples = scores[left], self.samples[left]
        return rows
