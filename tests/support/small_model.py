"""A model of seven layers, small enough to train in a second, with all kinds of messages between its stages."""

from torch import nn

from pipetrain.engine.models.chain import LayerChain


class Relay(nn.Module):
    """A layer that passes a skip tensor, an integer tensor and a mask beside its output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x, skip=None, ids=None, mask=None):
        if skip is None:
            skip, ids, mask = x, (x[:, 0] > 0).long(), x[:, :1] > 0.5
        return nn.functional.relu(self.norm(self.conv(x))), skip, ids, mask


class Join(nn.Module):
    """Where the relayed tensors are used; drops some, in dropout and by the mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.embedding = nn.Embedding(2, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x, skip, ids, mask):
        hidden = (x + skip).masked_fill(mask, 0.0).flatten(2).transpose(1, 2)
        return self.dropout(self.linear(hidden + self.embedding(ids).flatten(1, 2)))


class Recurrent(nn.Module):
    """An LSTM, whose output is not contiguous."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x):
        return self.lstm(x.transpose(0, 1).contiguous().transpose(0, 1))[0].transpose(1, 2)


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(2)


def build(channels: int, classes: int) -> LayerChain:
    width = 6
    module = nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=(8, 3), padding=1),  # 1 x 3 positions, unlike samples and features
        Relay(width),
        Relay(width),
        Join(width),
        Recurrent(width),
        Pool(),
        nn.Linear(width, classes),
    )
    return LayerChain(module, list(module))


def bounds(num_stages: int) -> list[tuple[int, int]]:
    """Cuts beside the relays and behind the LSTM."""
    cuts = {1: [], 2: [2], 3: [2, 5], 4: [1, 2, 5], 5: [1, 2, 3, 5], 6: [1, 2, 3, 5, 6]}[num_stages]
    return list(zip([0, *cuts], [*cuts, 7], strict=True))
