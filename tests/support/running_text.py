"""A tiny text that minibatches continue, and a model that carries its state from one to the next."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import StatefulLayer

ROWS, POSITIONS, TOKENS = 4, 3, 11
SECTIONS: dict[str, Any] = {
    "dataset": {"_target_": "support.running_text.data"},
    "model": {"_target_": "support.running_text.build"},
    "loss": {"_target_": "pipetrain.engine.losses.TokenCrossEntropy"},
}
"""What makes a tiny run of `worker_pool` one of this text and model."""


class RunningText:
    """Windows of a text; row b of each minibatch continues row b of the one before."""

    ordered = True

    def __init__(self, minibatches: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, TOKENS, (ROWS * minibatches * POSITIONS + 1,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens) // POSITIONS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.tokens[index * POSITIONS : (index + 1) * POSITIONS + 1]
        return window[:-1], window[1:]

    def batches(self, batch_size: int, samples: int) -> list[list[int]]:
        steps = samples // batch_size
        return [[row * steps + step for row in range(batch_size)] for step in range(steps)]


@dataclass
class Data:
    train: RunningText
    eval: RunningText
    vocabulary_size: int = TOKENS


def data() -> Data:
    """Six minibatches to train on, two to evaluate on."""
    return Data(RunningText(6, seed=1), RunningText(2, seed=2))


class Recurrent(StatefulLayer):
    """An LSTM that continues from the end of the previous minibatch."""

    def __init__(self, inputs: int, width: int, dropout: float) -> None:
        super().__init__()
        self.lstm, self.dropout = nn.LSTM(inputs, width, batch_first=True), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        begins_with = tuple(state.unsqueeze(0) for state in self.carried) if self.carried else None
        outputs, (hidden, cell) = self.lstm(x, begins_with)
        self.carry(hidden[0], cell[0])
        return self.dropout(outputs)


def build(dropout: float = 0.1) -> LayerChain:
    """Seven layers: an embedding, five LSTMs and a decoder."""
    lstms = [Recurrent(6 if i else 5, 6, dropout) for i in range(5)]
    module = nn.Sequential(nn.Embedding(TOKENS, 5), *lstms, nn.Linear(6, TOKENS))
    return LayerChain(module, list(module))


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def minibatches(split: RunningText) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of `ROWS` samples each."""
    for batch in split.batches(ROWS, len(split)):
        inputs, targets = zip(*(split[index] for index in batch), strict=True)
        yield torch.stack(inputs), torch.stack(targets)
