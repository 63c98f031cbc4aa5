"""The layers that a Transformer for translation is cut into: embeddings, and the sublayers of torch's own blocks."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from pipetrain.tensors import Tensors


@dataclass(frozen=True)
class Blocks:
    """One block of the encoder and one of the decoder, which the others are copies of."""

    encoder: nn.TransformerEncoderLayer
    decoder: nn.TransformerDecoderLayer

    @classmethod
    def of(cls, width: int, heads: int, feedforward: int, dropout: float) -> Self:
        """Blocks without dropout of attention weights and hidden units, which torch's have and fairseq's have not."""
        encoder = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, batch_first=True)
        decoder = nn.TransformerDecoderLayer(width, heads, feedforward, dropout, batch_first=True)
        for attention in (encoder.self_attn, decoder.self_attn, decoder.multihead_attn):
            attention.dropout = 0.0
        encoder.dropout.p = decoder.dropout.p = 0.0
        return cls(encoder, decoder)


class EmbedSource(nn.Module):
    """The first layer: source and target ids to vectors of the source, its padding, and the target as it came."""

    def __init__(self, embedding: nn.Embedding, dropout: nn.Dropout) -> None:
        super().__init__()
        self.embedding, self.dropout = embedding, dropout

    @override
    def forward(self, source: Tensor, target: Tensor) -> Tensors:
        return self.dropout(self.embedding(source)), source.eq(self.embedding.padding_idx), target  # type: ignore[arg-type]


class EncoderAttention(nn.Module):
    """Self-attention of an encoder block."""

    def __init__(self, block: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.attention, self.dropout, self.norm = block.self_attn, block.dropout1, block.norm1

    @override
    def forward(self, x: Tensor, padding: Tensor, target: Tensor) -> Tensors:
        y = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return self.norm(x + self.dropout(y)), padding, target


class FeedForward(nn.Module):
    """Two linear maps and a ReLU between them, at every position; what else comes is passed on."""

    def __init__(
        self,
        block: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
        dropout: nn.Dropout,
        norm: nn.LayerNorm,
        *,
        relays: bool = True,
    ) -> None:
        super().__init__()
        self.linear1, self.linear2 = block.linear1, block.linear2
        self.dropout, self.norm = dropout, norm
        self.relays = relays

    @override
    def forward(self, x: Tensor, *others: Tensor) -> Tensors:
        y = self.linear2(F.relu(self.linear1(x)))
        result = self.norm(x + self.dropout(y))
        return (result, *others) if self.relays else (result,)


class EmbedTarget(nn.Module):
    """The decoder's first layer: vectors of the target, the encoder's output and its padding."""

    def __init__(self, embedding: nn.Embedding, dropout: nn.Dropout) -> None:
        super().__init__()
        self.embedding, self.dropout = embedding, dropout

    @override
    def forward(self, memory: Tensor, padding: Tensor, target: Tensor) -> Tensors:
        return self.dropout(self.embedding(target)), memory, padding


class DecoderAttention(nn.Module):
    """Self-attention of a decoder block: a position sees none that comes later."""

    def __init__(self, block: nn.TransformerDecoderLayer) -> None:
        super().__init__()
        self.attention, self.dropout, self.norm = block.self_attn, block.dropout1, block.norm1

    @override
    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensors:
        y = self.attention(x, x, x, attn_mask=causal(x), is_causal=True, need_weights=False)[0]
        return self.norm(x + self.dropout(y)), memory, padding


class CrossAttention(nn.Module):
    """Attention of a decoder block to the encoder's output."""

    def __init__(self, block: nn.TransformerDecoderLayer) -> None:
        super().__init__()
        self.attention, self.dropout, self.norm = block.multihead_attn, block.dropout2, block.norm2

    @override
    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensors:
        y = self.attention(x, memory, memory, key_padding_mask=padding, need_weights=False)[0]
        return self.norm(x + self.dropout(y)), memory, padding


def causal(x: Tensor) -> Tensor:
    """Which positions of x (n, positions, width) are hidden from each: (positions, positions), True for later ones."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


def of_encoder(encoder: nn.TransformerEncoder) -> list[nn.Module]:
    """Two layers for each block."""
    layers: list[nn.Module] = []
    for block in encoder.layers:
        assert isinstance(block, nn.TransformerEncoderLayer)
        layers += [EncoderAttention(block), FeedForward(block, block.dropout2, block.norm2)]
    return layers


def of_decoder(decoder: nn.TransformerDecoder) -> list[nn.Module]:
    """Three layers for each block; behind the last one nobody needs the encoder's output."""
    blocks = decoder_blocks(decoder)
    layers: list[nn.Module] = []
    for block in blocks:
        last = block is blocks[-1]
        feed_forward = FeedForward(block, block.dropout3, block.norm3, relays=not last)
        layers += [DecoderAttention(block), CrossAttention(block), feed_forward]
    return layers


def decoder_blocks(decoder: nn.TransformerDecoder) -> list[nn.TransformerDecoderLayer]:
    """The blocks by their type."""
    return [block for block in decoder.layers if isinstance(block, nn.TransformerDecoderLayer)]
