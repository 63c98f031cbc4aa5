"""Pairs of a sentence and its translation as token ids: one split of a translation data set."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pipetrain.data.length_buckets import bucketed
from pipetrain.data.sentences import Sentences
from pipetrain.data.vocabulary import BEGINNING, END, PADDING
from pipetrain.tensors import Tensors

Pair = tuple[tuple[Tensor, Tensor], Tensor]
"""((source and an end mark, a beginning mark and the target), the target and an end mark): int64 (positions,) each."""


class SentencePairs:
    """One split; minibatches are of similar lengths, and padded.

    Args:
        sources, targets: the sentences, without marks.
        kept: which of them are samples, in order; None for all.
        batch_tokens: positions of a minibatch at most, sentences times the longest of them; None for any number.
    """

    def __init__(
        self, sources: Sentences, targets: Sentences, kept: Sequence[int] | None = None, batch_tokens: int | None = None
    ) -> None:
        self.sources, self.targets = sources, targets
        self.kept = range(len(sources)) if kept is None else kept
        self.batch_tokens = batch_tokens

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Pair:
        place = self.kept[index]
        target = self.targets[place]
        inputs = self.source(index), torch.tensor([BEGINNING, *target])
        return inputs, torch.tensor([*target, END])

    def source(self, index: int) -> Tensor:
        """What the encoder reads of sample `index`."""
        return torch.tensor([*self.sources[self.kept[index]], END])

    def batches(self, batch_size: int, samples: int) -> list[list[int]]:
        """Minibatches of the first `samples` samples, at most `batch_size` in each."""
        sources, targets = self.sources.lengths, self.targets.lengths
        lengths = [(sources[place] + 1, targets[place] + 1) for place in self.kept[:samples]]
        return bucketed(lengths, batch_size, self.batch_tokens)

    def collate(self, pairs: Sequence[Pair]) -> tuple[Tensors, Tensors]:
        """The sources and the targets as inputs, and the targets, each (n, positions) and padded."""
        sources, prefixes = zip(*(inputs for inputs, _ in pairs), strict=True)
        return (_padded(sources), _padded(prefixes)), (_padded([target for _, target in pairs]),)


def _padded(sequences: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(sequences), batch_first=True, padding_value=PADDING)
