"""GNMT (Wu et al. 2016), as PipeDream and PipeOptim train it: LSTMs, half of them in the encoder."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, check_whole, is_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.number_range import BELOW_ONE
from pipetrain.engine.tensors import Tensors
from pipetrain.zoo.models.translation_layers import EmbedSource, EmbedTarget, embedding_pair, zero_padding


class Attention(nn.Module):
    """Additive attention (Bahdanau et al. 2015, appendix A.1.2) of all positions of the decoder together."""

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


def encode_both_ways(lstm: nn.LSTM, x: Tensor, padding: Tensor) -> Tensor:
    """Output of a bidirectional LSTM for x (n, positions, inputs); backward it begins at each sample's last token.

    The host waits for the number of tokens of each sample.
    """
    lengths = padding.logical_not().sum(1).cpu()
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


def lstms_of(side: nn.ModuleList) -> list[nn.LSTM]:
    """The LSTMs of the encoder or the decoder, by their type."""
    return [lstm for lstm in side if isinstance(lstm, nn.LSTM)]


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
    """The encoder's first LSTM.

    On a GPU, where the host would have to wait for the lengths of samples, each direction is computed by itself, with
    the same weights: the second one reads samples whose tokens are in reverse.
    """

    def __init__(self, lstm: nn.LSTM, dropout: nn.Dropout) -> None:
        super().__init__(lstm, dropout)
        self.ahead, self.back = (_direction(lstm, suffix) for suffix in ("", "_reverse"))

    @override
    def forward(self, x: Tensor, padding: Tensor, target: Tensor) -> Tensors:
        x = self.dropout(x)
        packed = x.device.type in ("cpu", "meta")  # a cost estimated from shapes is that of the CPU
        return encode_both_ways(self.lstm, x, padding) if packed else self.in_parts(x, padding), padding, target

    def in_parts(self, x: Tensor, padding: Tensor) -> Tensor:
        """As `encode_both_ways`, without a wait of the host."""
        lengths, positions = padding.logical_not().sum(1, keepdim=True), torch.arange(x.shape[1], device=x.device)
        ended = positions >= lengths
        reverse = torch.arange(len(x), device=x.device)[:, None], torch.where(ended, positions, lengths - 1 - positions)
        y = torch.cat([self.ahead(x)[0], self.back(x[reverse])[0][reverse]], -1)
        return y.masked_fill(ended[..., None], 0)


def _direction(lstm: nn.LSTM, suffix: str) -> nn.LSTM:
    """One direction of a bidirectional LSTM, with its weights."""
    part = nn.LSTM(lstm.input_size, lstm.hidden_size, batch_first=True, device="meta")
    for name in [name for name, _ in part.named_parameters()]:
        setattr(part, name, getattr(lstm, name + suffix))
    return part


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
    """A later LSTM of the decoder; the last one does not pass the context on."""

    def __init__(self, lstm: nn.LSTM, dropout: nn.Dropout, *, residual: bool, last: bool) -> None:
        super().__init__(lstm, dropout, residual=residual)
        self.last = last

    @override
    def forward(self, x: Tensor, context: Tensor) -> Tensors:
        y = self.read(x, torch.cat([x, context], -1))
        return (y,) if self.last else (y, context)


_SPREAD, _SPREAD_WIDTH = 0.1, 1024  # of the initial weights of NVIDIA's implementation, and its width


class GNMT(nn.Module):
    """The model as plain PyTorch code would have it; its names appear in checkpoints.

    The first LSTM of the encoder reads both ways. Its third and later ones, and the decoder's, have residual
    connections. The decoder's first LSTM attends to the encoder's output at the same position, and what it finds there
    is an input of all further ones: training needs no step from position to position.
    """

    def __init__(self, embeddings: tuple[nn.Embedding, nn.Embedding], layers: int, dropout: float) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = embeddings
        width = self.target_embedding.embedding_dim
        self.dropout = nn.Dropout(dropout)
        both_ways = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.encoder = nn.ModuleList([both_ways, _lstm(2 * width, width)])
        self.encoder.extend(_lstm(width, width) for _ in range(layers // 2 - 2))
        self.attention = Attention(width)
        self.decoder = nn.ModuleList([_lstm(width, width)])
        self.decoder.extend(_lstm(2 * width, width) for _ in range(layers // 2 - 1))
        self.head = nn.Linear(width, self.target_embedding.num_embeddings)

    @override
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Token ids (n, source positions) and (n, positions) to scores (n, positions, vocabulary)."""
        memory, padding = self._encoded(source)
        x = self.decoder[0](self.dropout(self.target_embedding(target)))[0]
        context = self.attention(x, memory, padding)
        for i, lstm in enumerate(self.decoder[1:]):
            y = lstm(self.dropout(torch.cat([x, context], -1)))[0]
            x = x + y if i else y
        return self.head(x)  # type: ignore[no-any-return]

    def begin(self, source: Tensor) -> Tensors:
        """The state before the first token: the encoder's output, its padding, and each LSTM's h and c of zeros."""
        memory, padding = self._encoded(source)
        zeros = memory.new_zeros(len(memory), 1, memory.shape[-1])
        return memory, padding, *[zeros] * (2 * len(self.decoder))

    def step(self, tokens: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """The scores (n, vocabulary) of what follows the latest tokens (n,), and the state with these."""
        memory, padding, *held = state
        x, *after = _one_position(self.decoder[0], self.target_embedding(tokens[:, None]), held[:2])
        context = self.attention(x, memory, padding)
        for i, lstm in enumerate(self.decoder[1:]):
            y, *carried = _one_position(lstm, torch.cat([x, context], -1), held[2 * i + 2 : 2 * i + 4])
            x = x + y if i else y
            after += carried
        return self.head(x[:, 0]), (memory, padding, *after)

    def _encoded(self, source: Tensor) -> tuple[Tensor, Tensor]:
        padding = source.eq(self.source_embedding.padding_idx)  # type: ignore[arg-type]
        first, *later = lstms_of(self.encoder)
        x = encode_both_ways(first, self.dropout(self.source_embedding(source)), padding)
        for i, lstm in enumerate(later):
            y = lstm(self.dropout(x))[0]
            x = x + y if i else y
        return x, padding


def _lstm(inputs: int, width: int) -> nn.LSTM:
    return nn.LSTM(inputs, width, batch_first=True)


def _one_position(lstm: nn.Module, x: Tensor, held: list[Tensor]) -> Tensors:
    """The output (n, 1, width) at one position, and h and c after it, samples in dimension 0 as a search has them."""
    output, carried = lstm(x, tuple(tensor.transpose(0, 1).contiguous() for tensor in held))
    return output, *(tensor.transpose(0, 1) for tensor in carried)


def build(  # noqa: PLR0913  (one for each setting of the choice)
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    padding: int = 0,
    layers: int = 8,
    width: int = 1024,
    dropout: float = 0.2,
    *,
    shared_embeddings: bool = False,
    joint_vocabulary: bool = True,
) -> LayerChain:
    """GNMT of `layers` LSTMs, each of them a layer of the chain, with two embeddings and the head.

    With one embedding of both languages, 31,800 tokens and the default width, 8 LSTMs have 159,605,816 parameters, one
    less than NVIDIA's implementation, the reference of MLPerf: that one normalizes a weight of its attention and scales
    it. Here, as in the paper, no tensor is computed from weights alone. The initial weights are uniform, within ±0.1 as
    in that implementation; at another width than its 1024, matrices are spread by √(1024 / width) times as much.

    `conf/model/gnmt8.yaml` describes the options; `joint_vocabulary` is True if both languages have the same tokens.

    Raises:
        ConfigError: an option is out of its range, or contradicts another.
    """
    if not is_whole(layers) or layers < 4 or layers % 2:
        raise ConfigError(f"model.layers={layers}: must be an even number of at least 4, half of them for the encoder")
    check_whole("model.width", width, least=1)
    BELOW_ONE.check("model.dropout", dropout)
    embeddings = embedding_pair(
        lambda size: nn.Embedding(size, width, padding),
        (source_vocabulary_size, target_vocabulary_size),
        joint=joint_vocabulary,
        shared=shared_embeddings,
    )
    model = GNMT(embeddings, layers, dropout)
    _initialize(model, width)
    zero_padding(embeddings)
    return LayerChain(model, _layers(model))


def _initialize(model: GNMT, width: int) -> None:
    # a narrow model's matrices sum fewer terms: at the same spread, what distinguishes the words of a source would
    # almost vanish on its way to the attention
    of_matrices = _SPREAD * math.sqrt(_SPREAD_WIDTH / width)
    for name, weight in model.named_parameters():
        spread = of_matrices if weight.dim() > 1 and "embedding" not in name else _SPREAD
        nn.init.uniform_(weight, -spread, spread)


def _layers(model: GNMT) -> list[nn.Module]:
    first, *later = lstms_of(model.encoder)
    attending, *others = lstms_of(model.decoder)
    return [
        EmbedSource(model.source_embedding, nn.Identity()),
        BothWays(first, model.dropout),
        *(EncoderLSTM(lstm, model.dropout, residual=i > 0) for i, lstm in enumerate(later)),
        EmbedTarget(model.target_embedding, nn.Identity()),
        AttendingLSTM(attending, model.dropout, model.attention),
        *(DecoderLSTM(lstm, model.dropout, residual=i > 0, last=lstm is others[-1]) for i, lstm in enumerate(others)),
        model.head,
    ]
