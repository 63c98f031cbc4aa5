"""Beam search: the most probable texts that a model generates, a whole minibatch side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipetrain.decoding.generator import Generator
from pipetrain.decoding.marks import Marks
from pipetrain.decoding.options import DecodingOptions
from pipetrain.tensors import Tensors


@torch.no_grad()
def beam_search(
    model: Generator, source: Tensors, marks: Marks, longest: Sequence[int], options: DecodingOptions
) -> list[list[int]]:
    """The best text of each sample: its token ids, without marks.

    Each step extends every hypothesis by every token and keeps the `beam_width` most probable ones that go on. Those
    among the first `beam_width` that end are set aside; a sample is done when it has that many. The best of them is the
    one with the highest log-probability after the length penalty. As in fairseq, the longest text must end.

    Args:
        model: in evaluation mode.
        source: the encoder's inputs (n, positions, …).
        marks: of the target vocabulary.
        longest: tokens of the text of each sample at most.
        options: of the search.
    """
    beams = _Beams(longest, marks, options)
    state = model.begin(*source)
    state = _rows(state, beams.samples.repeat_interleave(options.beam_width).to(state[0].device))
    while len(beams.samples):
        logits, state = model.step(beams.latest.to(state[0].device), state)
        state = _rows(state, beams.extend(logits).to(state[0].device))
    return [found.text for found in beams.found]


def _rows(state: Tensors, rows: Tensor) -> Tensors:
    return tuple(tensor.index_select(0, rows) for tensor in state)


@dataclass
class _Found:
    """What has ended of one sample: the best text so far."""

    count: int = 0
    score: float = -math.inf
    text: list[int] = field(default_factory=list)

    def add(self, score: float, text: list[int]) -> None:
        self.count += 1
        if score > self.score:
            self.score, self.text = score, text


class _Beams:
    """The hypotheses of the samples that are not done, `beam_width` rows of each one after the other."""

    def __init__(self, longest: Sequence[int], marks: Marks, options: DecodingOptions) -> None:
        count = len(longest)
        self._marks = marks
        self._options = options
        self._longest = torch.tensor(longest)
        self.found = [_Found() for _ in longest]
        self.samples = torch.arange(count)
        """The samples that are not done."""
        width = options.beam_width
        self._texts = torch.empty(count, width, 0, dtype=torch.int64)
        # all hypotheses of a sample are the same one before the first token: the others must not be chosen
        self._scores = torch.full((count, width), -math.inf)
        self._scores[:, 0] = 0.0
        self.latest = torch.full((count * width,), marks.beginning)
        """The last token of each row."""

    def extend(self, logits: Tensor) -> Tensor:
        """Goes on to the next token; the old row that each new one continues.

        Args:
            logits: of the next token, (rows, vocabulary).
        """
        width, vocabulary = self._options.beam_width, logits.shape[1]
        at_end = self._longest[self.samples] <= self._texts.shape[2]
        scores = self._of_next(logits, at_end).view(len(self.samples), -1)
        best, index = scores.topk(min(2 * width, scores.shape[1]))
        beams, tokens = index // vocabulary, index % vocabulary
        ends = tokens.eq(self._marks.end)
        self._set_aside(best[:, :width], beams[:, :width], ends[:, :width])
        going, order = best.masked_fill(ends, -math.inf).topk(width)
        return self._go_on(going, beams.gather(1, order), tokens.gather(1, order), at_end)

    def _of_next(self, logits: Tensor, at_end: Tensor) -> Tensor:
        """The log-probability of each hypothesis with each token after it, (samples, width, vocabulary)."""
        log_probabilities = logits.float().log_softmax(1).cpu().view(*self._scores.shape, -1)
        tokens = torch.arange(logits.shape[1])
        never = tokens.eq(self._marks.beginning) | tokens.eq(self._marks.padding)
        impossible = never | (at_end[:, None] & tokens.ne(self._marks.end))
        return self._scores[:, :, None] + log_probabilities.masked_fill(impossible[:, None], -math.inf)

    def _set_aside(self, scores: Tensor, beams: Tensor, ends: Tensor) -> None:
        """Notes the hypotheses that end; what is impossible, or not a number, is none."""
        divisor = self._options.divisor(self._texts.shape[2] + 1)
        for sample, column in (ends & scores.isfinite()).nonzero().tolist():
            text = self._texts[sample, int(beams[sample, column])].tolist()
            self.found[int(self.samples[sample])].add(scores[sample, column].item() / divisor, text)

    def _go_on(self, scores: Tensor, beams: Tensor, tokens: Tensor, at_end: Tensor) -> Tensor:
        """Keeps these hypotheses of the samples that are not done."""
        width = self._options.beam_width
        done = torch.tensor([self.found[sample].count >= width for sample in self.samples.tolist()])
        left = (~(done | at_end)).nonzero().flatten()
        rows = (torch.arange(len(self.samples))[:, None] * width + beams)[left].flatten()
        earlier = self._texts.flatten(0, 1)[rows]
        self.latest = tokens[left].flatten()
        self._texts = torch.cat([earlier, self.latest[:, None]], 1).unflatten(0, (len(left), width))
        self._scores, self.samples = scores[left], self.samples[left]
        return rows
