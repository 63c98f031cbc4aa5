"""The Transformer for translation (Vaswani et al. 2017)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, as_configured, check_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.number_range import BELOW_ONE
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.models.translation_layers import EmbedSource, EmbedTarget, embedding_pair, zero_padding


def keys_and_values(attention: nn.MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of `attention` for x (n, positions, width), both of the same shape."""
    width = attention.embed_dim
    keys, values = F.linear(x, attention.in_proj_weight[width:], attention.in_proj_bias[width:]).split(width, -1)
    return keys, values


def cached_attention(
    attention: nn.MultiheadAttention, x: Tensor, cached: Sequence[Tensor], padding: Tensor | None = None
) -> Tensor:
    """Output of `attention` for x (n, positions, width) and cached keys and values, those of `padding` aside."""
    width = attention.embed_dim
    queries = F.linear(x, attention.in_proj_weight[:width], attention.in_proj_bias[:width])
    seen = None if padding is None else padding.logical_not()[:, None, None]
    split = (tensor.unflatten(2, (attention.num_heads, -1)).transpose(1, 2) for tensor in (queries, *cached))
    query, key, value = split
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return attention.out_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention with a residual connection and a norm, one part of a block."""

    def __init__(self, attention: nn.MultiheadAttention, dropout: nn.Dropout, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.attention, self.dropout, self.norm = attention, dropout, norm

    def attend(self, x: Tensor, memory: Tensor, **masks: Any) -> Tensor:
        """Output for x (n, positions, width) with keys and values of `memory`."""
        y = self.attention(x, memory, memory, need_weights=False, **masks)[0]
        return self.norm(x + self.dropout(y))  # type: ignore[no-any-return]


class EncoderAttention(Attention):
    """Self-attention of an encoder block."""

    @override
    def forward(self, x: Tensor, padding: Tensor, target: Tensor) -> Tensors:
        return self.attend(x, x, key_padding_mask=padding), padding, target


class DecoderAttention(Attention):
    """Self-attention of a decoder block: a position sees no later one."""

    @override
    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensors:
        return self.attend(x, x, attn_mask=causal_mask(x), is_causal=True), memory, padding


class CrossAttention(Attention):
    """Attention of a decoder block to the encoder's output."""

    @override
    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensors:
        return self.attend(x, memory, key_padding_mask=padding), memory, padding


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


def causal_mask(x: Tensor) -> Tensor:
    """Mask (positions, positions) of x (n, positions, width): True for later positions, which are hidden."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


def decoder_blocks(decoder: nn.TransformerDecoder) -> list[nn.TransformerDecoderLayer]:
    """The blocks by their type."""
    return [block for block in decoder.layers if isinstance(block, nn.TransformerDecoderLayer)]


_TARGET, _ALL = "target", "all"


class Embedding(nn.Embedding):
    """Vectors of tokens, scaled by the root of their width, plus sinusoidal positions (sections 3.4 and 3.5)."""

    @override
    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """(n, positions), the first of them at position `first`, to (n, positions, width)."""
        vectors = super().forward(tokens) * math.sqrt(self.embedding_dim)
        return vectors + sinusoids(first + tokens.shape[1], vectors)[first:]


def sinusoids(positions: int, like: Tensor) -> Tensor:
    """Sines of the positions, then cosines, at geometric frequencies: (positions, width of `like`), as in fairseq."""
    width = like.shape[-1]
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=like.dtype, device=like.device) * (-math.log(10_000) / max(1, half - 1)))
    angles = torch.arange(positions, dtype=like.dtype, device=like.device)[:, None] * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, width % 2))


class Transformer(nn.Module):
    """The model as plain PyTorch code would have it; its names appear in checkpoints.

    `encoder` and `decoder` are those of an `nn.Transformer` with post-norm, as in the paper, and without final norms.
    """

    def __init__(
        self, embeddings: tuple[Embedding, Embedding], layers: int, feedforward: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = embeddings
        self.dropout = nn.Dropout(dropout)
        width = self.target_embedding.embedding_dim
        encoder = nn.TransformerEncoderLayer(width, heads, feedforward, dropout, batch_first=True)
        decoder = nn.TransformerDecoderLayer(width, heads, feedforward, dropout, batch_first=True)
        # fairseq has no dropout of attention weights and hidden units
        for attention in (encoder.self_attn, decoder.self_attn, decoder.multihead_attn):
            attention.dropout = 0.0
        encoder.dropout.p = decoder.dropout.p = 0.0
        self.encoder = nn.TransformerEncoder(encoder, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, layers)
        self.head = nn.Linear(width, self.target_embedding.num_embeddings, bias=False)

    @override
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Token ids (n, source positions) and (n, positions) to scores (n, positions, vocabulary)."""
        memory, padding = self._encoded(source)
        embedded = self.dropout(self.target_embedding(target))
        hidden = self.decoder(
            embedded, memory, tgt_mask=causal_mask(embedded), tgt_is_causal=True, memory_key_padding_mask=padding
        )
        return self.head(hidden)  # type: ignore[no-any-return]

    def begin(self, source: Tensor) -> Tensors:
        """The state before the first token: the padding, then keys and values of each block for memory and tokens."""
        memory, padding = self._encoded(source)
        state, none = [padding], memory[:, :0]
        for block in decoder_blocks(self.decoder):
            state += [*keys_and_values(block.multihead_attn, memory), none, none]
        return tuple(state)

    def step(self, tokens: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """The scores (n, vocabulary) of what follows the latest tokens (n,), and the state with these."""
        padding, *cached = state
        hidden = self.target_embedding(tokens[:, None], first=cached[2].shape[1])
        after = [padding]
        for i, block in enumerate(decoder_blocks(self.decoder)):
            of_memory, earlier = cached[4 * i : 4 * i + 2], cached[4 * i + 2 : 4 * i + 4]
            latest = keys_and_values(block.self_attn, hidden)
            of_tokens = [torch.cat(pair, 1) for pair in zip(earlier, latest, strict=True)]
            hidden = block.norm1(hidden + cached_attention(block.self_attn, hidden, of_tokens))
            hidden = block.norm2(hidden + cached_attention(block.multihead_attn, hidden, of_memory, padding))
            hidden = block.norm3(hidden + block.linear2(F.relu(block.linear1(hidden))))
            after += [*of_memory, *of_tokens]
        return self.head(hidden[:, 0]), tuple(after)

    def _encoded(self, source: Tensor) -> tuple[Tensor, Tensor]:
        padding = source.eq(self.source_embedding.padding_idx)  # type: ignore[arg-type]
        return self.encoder(self.dropout(self.source_embedding(source)), src_key_padding_mask=padding), padding


def build(  # noqa: PLR0913  (one for each setting of the choice)
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    padding: int = 0,
    layers: int = 6,
    width: int = 512,
    feedforward: int = 2048,
    heads: int = 8,
    dropout: float = 0.1,
    shared_embeddings: str | None = None,
    *,
    joint_vocabulary: bool = True,
) -> LayerChain:
    """A Transformer of `layers` blocks on each side; the defaults make the base model (table 3).

    The inputs of the first layer are the token ids of the source (n, source positions) and of the target up to each
    position (n, positions), padded with `padding`. The source's padding and the target's ids ride along to the decoder,
    the encoder's output through it. Initial weights are drawn as in fairseq, and dropout follows what it does there.

    `conf/model/transformer.yaml` describes the options; `joint_vocabulary` is True if both languages have the same
    tokens.

    Raises:
        ConfigError: an option is out of its range, or contradicts another.
    """
    counts = {"layers": layers, "width": width, "feedforward": feedforward, "heads": heads}
    for name, count in counts.items():
        check_whole(f"model.{name}", count, least=1)
    BELOW_ONE.check("model.dropout", dropout)
    if width % heads:
        raise ConfigError(f"model.heads={heads}: must divide model.width={width}")
    if shared_embeddings not in (None, _TARGET, _ALL):
        raise ConfigError(
            f"model.shared_embeddings={as_configured(shared_embeddings)}: one of {_TARGET}, {_ALL}, or null for none"
        )
    embeddings = embedding_pair(
        lambda size: Embedding(size, width, padding),
        (source_vocabulary_size, target_vocabulary_size),
        joint=joint_vocabulary,
        shared=shared_embeddings == _ALL,
    )
    model = Transformer(embeddings, layers, feedforward, heads, dropout)
    if shared_embeddings is not None:
        model.head.weight = model.target_embedding.weight
    _draw(model)
    return LayerChain(model, _layers(model))


def _draw(model: Transformer) -> None:
    """Initial weights as in fairseq: embeddings and head as wide as 1/√width, matrices by Glorot & Bengio 2010."""
    for part in model.modules():
        if isinstance(part, nn.MultiheadAttention):
            nn.init.xavier_uniform_(part.in_proj_weight)
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    for weight in (model.head.weight, model.source_embedding.weight, model.target_embedding.weight):
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    zero_padding((model.source_embedding, model.target_embedding))


def _layers(model: Transformer) -> list[nn.Module]:
    """Two layers for each block of the encoder, three for each of the decoder, whose last one relays nothing."""
    layers: list[nn.Module] = [EmbedSource(model.source_embedding, model.dropout)]
    for encoder in model.encoder.layers:
        assert isinstance(encoder, nn.TransformerEncoderLayer)
        layers += [
            EncoderAttention(encoder.self_attn, encoder.dropout1, encoder.norm1),
            FeedForward(encoder, encoder.dropout2, encoder.norm2),
        ]
    layers.append(EmbedTarget(model.target_embedding, model.dropout))
    blocks = decoder_blocks(model.decoder)
    for block in blocks:
        layers += [
            DecoderAttention(block.self_attn, block.dropout1, block.norm1),
            CrossAttention(block.multihead_attn, block.dropout2, block.norm2),
            FeedForward(block, block.dropout3, block.norm3, relays=block is not blocks[-1]),
        ]
    return [*layers, model.head]
