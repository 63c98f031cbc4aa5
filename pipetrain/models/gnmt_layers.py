"""The layers that GNMT is cut into: embeddings, LSTMs of encoder and decoder, and the attention between them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from typing_extensions import override

from pipetrain.tensors import Tensors


class Attention(nn.Module):
    """Additive attention (Bahdanau et al. 2015, appendix A.1.2) of every position of the decoder at once."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    @override
    def forward(self, queries: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """Queries (n, positions, width), memory (n, source positions, width): the memory's mean at each position."""
        hidden = torch.tanh(self.query(queries)[:, :, None] + self.key(memory)[:, None])
        scores = self.score(hidden).squeeze(-1).masked_fill(padding[:, None], float("-inf"))
        return F.softmax(scores, -1) @ memory


def encoded_both_ways(lstm: nn.LSTM, x: Tensor, padding: Tensor) -> Tensor:
    """What a bidirectional LSTM makes of x (n, positions, inputs); backward it begins at each sample's last token."""
    lengths = padding.logical_not().sum(1).cpu()
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


def lstms_of(side: nn.ModuleList) -> list[nn.LSTM]:
    """The LSTMs of the encoder or the decoder, by their type."""
    return [lstm for lstm in side if isinstance(lstm, nn.LSTM)]


class EmbedSource(nn.Module):
    """The first layer: source and target ids to vectors of the source, its padding, and the target as it came."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    @override
    def forward(self, source: Tensor, target: Tensor) -> Tensors:
        return self.embedding(source), source.eq(self.embedding.padding_idx), target  # type: ignore[arg-type]


class EmbedTarget(nn.Module):
    """The decoder's first layer: vectors of the target, the encoder's output and its padding."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    @override
    def forward(self, memory: Tensor, padding: Tensor, target: Tensor) -> Tensors:
        return self.embedding(target), memory, padding


class _Recurrent(nn.Module):
    def __init__(self, lstm: nn.LSTM, dropout: nn.Dropout, *, residual: bool = False) -> None:
        super().__init__()
        self.lstm, self.dropout = lstm, dropout
        self.residual = residual

    def read(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The LSTM's output for the inputs, added to x where the layer is a residual one."""
        y: Tensor = self.lstm(self.dropout(inputs))[0]
        return x + y if self.residual else y


class BothWays(_Recurrent):
    """The encoder's first LSTM."""

    @override
    def forward(self, x: Tensor, padding: Tensor, target: Tensor) -> Tensors:
        return encoded_both_ways(self.lstm, self.dropout(x), padding), padding, target


class EncoderLSTM(_Recurrent):
    """A later LSTM of the encoder."""

    @override
    def forward(self, x: Tensor, padding: Tensor, target: Tensor) -> Tensors:
        return self.read(x, x), padding, target


class AttendingLSTM(_Recurrent):
    """The decoder's first LSTM, and what it finds in the encoder's output."""

    def __init__(self, lstm: nn.LSTM, dropout: nn.Dropout, attention: Attention) -> None:
        super().__init__(lstm, dropout)
        self.attention = attention

    @override
    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensors:
        y = self.read(x, x)
        return y, self.attention(y, memory, padding)


class DecoderLSTM(_Recurrent):
    """A later LSTM of the decoder; the last one passes the context on to nobody."""

    def __init__(self, lstm: nn.LSTM, dropout: nn.Dropout, *, residual: bool, last: bool) -> None:
        super().__init__(lstm, dropout, residual=residual)
        self.last = last

    @override
    def forward(self, x: Tensor, context: Tensor) -> Tensors:
        y = self.read(x, torch.cat([x, context], -1))
        return (y,) if self.last else (y, context)
