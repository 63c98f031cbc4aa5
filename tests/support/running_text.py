"""A tiny text that minibatches continue, and a model that carries its state from one to the next."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pipetrain.models import awd_lstm
from pipetrain.models.chain import LayerChain

ROWS, POSITIONS, TOKENS = 4, 3, 11


class RunningText:
    """Row b of each minibatch of `ROWS` samples continues row b of the one before."""

    ordered = True

    def __init__(self, minibatches: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(0, TOKENS, (ROWS, minibatches * POSITIONS + 1), generator=generator)

    def __len__(self) -> int:
        return ROWS * ((self.rows.shape[1] - 1) // POSITIONS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= len(self):
            raise IndexError(index)
        minibatch, row = divmod(index, ROWS)
        start = minibatch * POSITIONS
        window = self.rows[row, start : start + POSITIONS + 1]
        return window[:-1], window[1:]


@dataclass
class Data:
    train: RunningText
    eval: RunningText
    vocabulary_size: int = TOKENS


def data() -> Data:
    """Six minibatches to train on, two to evaluate on."""
    return Data(RunningText(6, seed=1), RunningText(2, seed=2))


def build(dropout: float = 0.1, weight_drop: float = 0.0) -> LayerChain:
    """Seven layers: an embedding, five LSTMs and a decoder, with all kinds of dropout."""
    shares = dict.fromkeys(("dropout", "input_dropout", "hidden_dropout", "word_dropout"), dropout)
    return awd_lstm.build(TOKENS, embedding=5, hidden=6, layers=5, weight_drop=weight_drop, **shares)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def minibatches(split: RunningText) -> Iterator[tuple[Tensor, Tensor]]:
    samples = [split[index] for index in range(len(split))]
    for start in range(0, len(samples), ROWS):
        inputs, targets = zip(*samples[start : start + ROWS], strict=True)
        yield torch.stack(inputs), torch.stack(targets)
