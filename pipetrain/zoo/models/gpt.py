"""Decoder-only Transformers in the form and under the names of GPT-2 (Radford et al. 2019)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.number_range import BELOW_ONE

_DEVIATION = 0.02
"""Deviation of initial weights; for projections into the residual stream divided by √(2 · layers) (section 2.3)."""
_EXPANSION = 4


class Projection(nn.Module):
    """A linear map whose weight is (inputs, outputs), as GPT-2's checkpoints have it."""

    def __init__(self, inputs: int, outputs: int, deviation: float = _DEVIATION) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=deviation))
        self.bias = nn.Parameter(torch.zeros(outputs))

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


class Attention(nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, width: int, heads: int, dropout: float, deviation: float) -> None:
        super().__init__()
        self.c_attn = Projection(width, 3 * width)
        self.c_proj = Projection(width, width, deviation)
        self.resid_dropout = nn.Dropout(dropout)
        self.heads = heads
        self.dropout = dropout

    @override
    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).flatten(-2)))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Two projections with GELU in its tanh form between them."""

    def __init__(self, width: int, dropout: float, deviation: float) -> None:
        super().__init__()
        self.c_fc = Projection(width, _EXPANSION * width)
        self.c_proj = Projection(_EXPANSION * width, width, deviation)
        self.dropout = nn.Dropout(dropout)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and an MLP, each after a norm and with a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float, deviation: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout, deviation)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, dropout, deviation)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Trunk(nn.Module):
    """Everything before the scores: token ids (n, positions) to features (n, positions, width)."""

    def __init__(
        self, vocabulary_size: int, max_length: int, layers: int, width: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        deviation = _DEVIATION / (2 * layers) ** 0.5
        self.wte = nn.Embedding(vocabulary_size, width)
        self.wpe = nn.Embedding(max_length, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.Sequential(*(Block(width, heads, dropout, deviation) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)

    @override
    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.ln_f(self.h(self.drop(self.wte(ids) + self.wpe(positions))))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Token ids (n, positions) to scores of the next token (n, positions, vocabulary).

    The names match GPT2LMHeadModel in the `transformers` library.
    """

    def __init__(self, trunk: Trunk, *, tied: bool) -> None:
        super().__init__()
        self.transformer = trunk
        self.lm_head = nn.Linear(trunk.wte.embedding_dim, trunk.wte.num_embeddings, bias=False)
        for part in (trunk.wte, trunk.wpe, self.lm_head):
            nn.init.normal_(part.weight, std=_DEVIATION)
        if tied:
            self.lm_head.weight = trunk.wte.weight

    @override
    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.transformer(ids))  # type: ignore[no-any-return]


def build(  # noqa: PLR0913  (one for each setting of the choice)
    vocabulary_size: int,
    max_length: int,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    dropout: float = 0.0,
    *,
    tied: bool = False,
) -> LayerChain:
    """The chain of a decoder-only Transformer: embedding, the attention and the MLP of each block, norm and scores.

    `conf/model/gpt.yaml` describes the options.

    Raises:
        ConfigError: a number is out of its range, or the heads do not divide the width.
    """
    counts = {"vocabulary_size": vocabulary_size, "max_length": max_length}
    for name, count in {**counts, "layers": layers, "width": width, "heads": heads}.items():
        check_whole(f"model.{name}", count, least=1)
    BELOW_ONE.check("model.dropout", dropout)
    if width % heads:
        raise ConfigError(f"model.heads={heads}: must divide model.width={width}")
    trunk = Trunk(vocabulary_size, max_length, layers, width, heads, dropout)
    model = Gpt(trunk, tied=tied)
    layers_of_chain: list[nn.Module] = [_Embedding(trunk)]
    labels = ["embedding"]
    for i, block in enumerate(trunk.h):
        assert isinstance(block, Block)
        layers_of_chain += [_Residual(block.ln_1, block.attn), _Residual(block.ln_2, block.mlp)]
        labels += [f"h.{i}.attn", f"h.{i}.mlp"]
    layers_of_chain.append(nn.Sequential(trunk.ln_f, model.lm_head))
    return LayerChain(model, layers_of_chain, [*labels, "lm_head"])


class _Embedding(nn.Module):
    """The first layer: tokens and their positions."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = trunk.wte, trunk.wpe, trunk.drop

    @override
    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.drop(self.wte(ids) + self.wpe(positions))  # type: ignore[no-any-return]


class _Residual(nn.Module):
    """A norm and the part that follows it, with a shortcut."""

    def __init__(self, norm: nn.Module, part: nn.Module) -> None:
        super().__init__()
        self.norm, self.part = norm, part

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(self.norm(x))  # type: ignore[no-any-return]
