"""S2VT: a video's frames to a sentence, through two LSTM layers that read first and then write (Venugopalan 2015)."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.errors import check_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.number_range import BELOW_ONE
from pipetrain.engine.tensors import Tensors


class S2VT(nn.Module):
    """Two LSTM layers over the frames and then over the words; the loss is of the words alone.

    The first layer reads an embedding of each frame, and then zeros, one for each word. The second reads what the first
    gives, with zeros for each frame and then an embedding of each word before. Dropout is applied to both embeddings
    and to what the head reads.
    """

    def __init__(self, features: int, vocabulary_size: int, hidden: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.frame_embedding = nn.Linear(features, embedding)
        self.first = nn.LSTM(embedding, hidden, batch_first=True)
        self.word_embedding = nn.Embedding(vocabulary_size, embedding)
        self.second = nn.LSTM(hidden + embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def layers(self) -> list[nn.Module]:
        """The layers of the chain: frames, first LSTM layer, words, second LSTM layer, head."""
        return [
            _Frames(self.frame_embedding, self.dropout),
            _First(self.first),
            _Words(self.word_embedding, self.dropout),
            _Second(self.second),
            nn.Sequential(self.dropout, self.head),
        ]

    @override
    def forward(self, frames: Tensor, words: Tensor) -> Any:
        """Logits (n, positions, vocabulary) after each of the words (n, positions) for frames (n, frames, features)."""
        return LayerChain(self, self.layers())(frames, words)

    def begin(self, frames: Tensor) -> Tensors:
        """Both layers' hidden and cell states after the frames, (n, 1, hidden) each."""
        read, first = self.first(self.dropout(self.frame_embedding(frames)))
        zeros = read.new_zeros(*read.shape[:2], self.word_embedding.embedding_dim)
        _, second = self.second(torch.cat([read, zeros], 2))
        return tuple(state.transpose(0, 1) for state in (*first, *second))

    def step(self, tokens: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """The logits of the word after the words (n,), and the states then."""
        h1, c1, h2, c2 = (each.transpose(0, 1).contiguous() for each in state)
        word = self.dropout(self.word_embedding(tokens[:, None]))
        read, first = self.first(torch.zeros_like(word), (h1, c1))
        written, second = self.second(torch.cat([read, word], 2), (h2, c2))
        logits: Tensor = self.head(self.dropout(written[:, 0]))
        return logits, tuple(each.transpose(0, 1) for each in (*first, *second))


class _Frames(nn.Module):
    """(frames, words) -> (embedded frames and then a zero for each word, words)."""

    def __init__(self, frame_embedding: nn.Linear, dropout: nn.Dropout) -> None:
        super().__init__()
        self.frame_embedding, self.dropout = frame_embedding, dropout

    @override
    def forward(self, frames: Tensor, words: Tensor) -> Tensors:
        embedded = self.dropout(self.frame_embedding(frames))
        zeros = embedded.new_zeros(*words.shape, embedded.shape[2])
        return torch.cat([embedded, zeros], 1), words


class _First(nn.Module):
    """(inputs of the first LSTM layer, words) -> (its outputs, words)."""

    def __init__(self, first: nn.LSTM) -> None:
        super().__init__()
        self.first = first

    @override
    def forward(self, inputs: Tensor, words: Tensor) -> Tensors:
        return self.first(inputs)[0], words


class _Words(nn.Module):
    """(outputs of the first LSTM layer, words) -> (inputs of the second, words)."""

    def __init__(self, word_embedding: nn.Embedding, dropout: nn.Dropout) -> None:
        super().__init__()
        self.word_embedding, self.dropout = word_embedding, dropout

    @override
    def forward(self, read: Tensor, words: Tensor) -> Tensors:
        embedded = self.dropout(self.word_embedding(words))
        frames = read.shape[1] - words.shape[1]
        zeros = embedded.new_zeros(len(words), frames, embedded.shape[2])
        return torch.cat([read, torch.cat([zeros, embedded], 1)], 2), words


class _Second(nn.Module):
    """(inputs of the second LSTM layer, words) -> its outputs for each word."""

    def __init__(self, second: nn.LSTM) -> None:
        super().__init__()
        self.second = second

    @override
    def forward(self, inputs: Tensor, words: Tensor) -> Tensor:
        written: Tensor = self.second(inputs)[0]
        return written[:, -words.shape[1] :].contiguous()


def build(
    features: int, vocabulary_size: int, hidden: int = 1000, embedding: int = 500, dropout: float = 0.0
) -> LayerChain:
    """S2VT as a chain of five layers: frames, first LSTM, words, second LSTM, head.

    The inputs of the first layer are frames and words; words are relayed to the last but one. `conf/model/s2vt.yaml`
    describes the options; `features` is the size of a frame.

    Raises:
        ConfigError: a size is below 1, or the dropout is no share.
    """
    check_whole("model.hidden", hidden, least=1)
    check_whole("model.embedding", embedding, least=1)
    BELOW_ONE.check("model.dropout", dropout)
    model = S2VT(features, vocabulary_size, hidden, embedding, dropout)
    return LayerChain(model, model.layers(), ["frame_embedding", "first", "word_embedding", "second", "head"])
