"""Multi-head attention of one new position over the keys and values of earlier ones, as a search needs it."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F


def keys_and_values(attention: nn.MultiheadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """What `attention` makes of x (n, positions, width) for others to attend to, both of the same shape."""
    width = attention.embed_dim
    keys, values = F.linear(x, attention.in_proj_weight[width:], attention.in_proj_bias[width:]).split(width, -1)
    return keys, values


def attended(
    attention: nn.MultiheadAttention, x: Tensor, cached: Sequence[Tensor], padding: Tensor | None = None
) -> Tensor:
    """What `attention` returns for x (n, positions, width) and these keys and values, those of `padding` aside."""
    width = attention.embed_dim
    queries = F.linear(x, attention.in_proj_weight[:width], attention.in_proj_bias[:width])
    seen = None if padding is None else padding.logical_not()[:, None, None]
    query, key, value = (_heads(tensor, attention.num_heads) for tensor in (queries, *cached))
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return attention.out_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
