"""Embeddings of a translation model's two languages, as layers of its chain."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.tensors import Tensors

_Embedding = TypeVar("_Embedding", bound=nn.Embedding)


def embedding_pair(
    make: Callable[[int], _Embedding], vocabularies: tuple[int, int], *, joint: bool, shared: bool
) -> tuple[_Embedding, _Embedding]:
    """The embeddings of source and target for their numbers of tokens; with one weight if `shared`.

    Raises:
        ConfigError: they are to share it, and the vocabularies are not `joint`.
    """
    source, target = map(make, vocabularies)
    if shared:
        if not joint or source.num_embeddings != target.num_embeddings:
            raise ConfigError(
                "model.shared_embeddings: a shared embedding needs a joint vocabulary, and the languages have separate "
                f"ones, of {vocabularies[0]} and {vocabularies[1]} tokens; dataset.joint=true makes one"
            )
        target.weight = source.weight
    return source, target


@torch.no_grad()
def zero_padding(embeddings: Iterable[nn.Embedding]) -> None:
    """Sets the vectors of the padding token to zero."""
    for embedding in embeddings:
        embedding.weight[embedding.padding_idx] = 0


class EmbedSource(nn.Module):
    """The first layer: source and target ids to vectors of the source, its padding, and the target as it came."""

    def __init__(self, embedding: nn.Embedding, dropout: nn.Module) -> None:
        super().__init__()
        self.embedding, self.dropout = embedding, dropout

    @override
    def forward(self, source: Tensor, target: Tensor) -> Tensors:
        return self.dropout(self.embedding(source)), source.eq(self.embedding.padding_idx), target  # type: ignore[arg-type]


class EmbedTarget(nn.Module):
    """The decoder's first layer: vectors of the target, the encoder's output and its padding."""

    def __init__(self, embedding: nn.Embedding, dropout: nn.Module) -> None:
        super().__init__()
        self.embedding, self.dropout = embedding, dropout

    @override
    def forward(self, memory: Tensor, padding: Tensor, target: Tensor) -> Tensors:
        return self.dropout(self.embedding(target)), memory, padding
