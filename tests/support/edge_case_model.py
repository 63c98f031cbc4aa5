"""A model that another library's pipeline may get wrong in silence: seven layers, cut as those of `small_model`."""

import torch
from torch import Tensor, nn

from pipetrain.engine.models.chain import LayerChain

WIDTH, LENGTH = 6, 64


class Words(nn.Module):
    """No weights, and nothing of it can be differentiated."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values = x.flatten(1)
        return (values.clamp(-2, 2) * 2 + 4).long(), values > 1


class Embed(nn.Module):
    """Weights behind integers alone; its output is what its backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, WIDTH)

    def forward(self, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.embedding(words)), mask


class Sums(nn.Module):
    """Works in place on what it is given; adds weights, so that two of them have one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(WIDTH, WIDTH) / 4) for _ in range(2))
        self.place, self.other = (nn.Parameter(torch.randn(1, LENGTH, WIDTH) / 4) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x.mul_(1.5).masked_fill_(mask.unsqueeze(-1), 0.5)
        return nn.functional.linear(x, self.first + self.second) + self.place + self.other


class Twice(nn.Module):
    """Uses its weights a second time on what came of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(torch.tanh(self.linear(x)))
        return self.norm(x + self.norm(x))


class Ends(nn.Module):
    """All that an LSTM gives, transposed: not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outputs, (last, _) = self.lstm(x)
        return (outputs + last.transpose(0, 1)).transpose(1, 2), last[0]


class Mean(nn.Module):
    """Dropout and batch statistics; a tensor that came and is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)

    def forward(self, x: Tensor, __unused: Tensor) -> Tensor:
        return self.dropout(self.norm(x)).mean(2)


def build(channels: int, classes: int) -> LayerChain:
    assert channels * 8 * 8 == LENGTH
    layers = [Words(), Embed(), Sums(), Twice(), Ends(), Mean(), nn.Linear(WIDTH, classes)]
    return LayerChain(nn.Sequential(*layers), layers)
