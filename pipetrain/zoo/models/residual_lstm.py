"""The Residual LSTM (Kim et al. 2017, arXiv:1701.03360) as a classifier of texts."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.engine.errors import check_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.number_range import BELOW_ONE


class ResidualLstmCell(nn.Module):
    """An LSTM cell with peepholes whose input joins its projected output at the output gate (section 3.1).

    The peepholes (3, width) weigh the cell state in the input, forget and output gates, whose arguments come first.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * width)
        self.from_hidden = nn.Linear(width, 4 * width, bias=False)
        self.peepholes = nn.Parameter(torch.zeros(3, width))
        self.projection = nn.Linear(width, width, bias=False)
        self.shortcut = nn.Identity() if inputs == width else nn.Linear(inputs, width, bias=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Hidden states (n, positions, width) of inputs (n, positions, inputs)."""
        arguments, shortcuts = self.from_input(x).unbind(1), self.shortcut(x).unbind(1)
        hidden = cell = x.new_zeros(len(x), self.projection.in_features)
        of_i, of_f, of_o = self.peepholes
        hiddens = []
        for argument, shortcut in zip(arguments, shortcuts, strict=True):
            i, f, o, g = (argument + self.from_hidden(hidden)).chunk(4, dim=1)
            cell = (f + of_f * cell).sigmoid() * cell + (i + of_i * cell).sigmoid() * g.tanh()
            hidden = (o + of_o * cell).sigmoid() * (self.projection(cell.tanh()) + shortcut)
            hiddens.append(hidden)
        return torch.stack(hiddens, dim=1)


class TokenEmbedding(nn.Module):
    """Embeds ids (n, positions); returns the vectors and the mask of padding."""

    def __init__(self, tokens: int, width: int, padding: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width, padding_idx=padding)
        self.dropout = nn.Dropout(dropout)
        self.padding = padding

    @override
    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.dropout(self.embedding(ids)), ids == self.padding


class ResidualLstmLayer(nn.Module):
    """A cell over all positions; the mask goes past it."""

    def __init__(self, inputs: int, width: int, dropout: float) -> None:
        super().__init__()
        self.cell = ResidualLstmCell(inputs, width)
        self.dropout = nn.Dropout(dropout)

    @override
    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return self.dropout(self.cell(x)), mask


class MeanClassifier(nn.Module):
    """Class scores (n, classes) of the mean over the positions that are no padding."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    @override
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        words = (~mask).sum(1, keepdim=True).clamp(min=1)
        return self.linear(x.masked_fill(mask.unsqueeze(-1), 0.0).sum(1) / words)  # type: ignore[no-any-return]


class ResidualLstm(nn.Module):
    """The model as plain PyTorch code would have it; its names appear in checkpoints."""

    def __init__(self, embedding: TokenEmbedding, layers: list[ResidualLstmLayer], classifier: MeanClassifier) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.classifier = classifier

    @override
    def forward(self, ids: Tensor) -> Tensor:
        """Class scores (n, classes) of texts (n, positions)."""
        x, mask = self.embedding(ids)
        for layer in self.layers:
            x, mask = layer(x, mask)
        return self.classifier(x, mask)  # type: ignore[no-any-return]


def build(  # noqa: PLR0913  (one for each setting of the model)
    vocabulary_size: int,
    classes: int,
    padding: int = 0,
    embedding: int = 128,
    hidden: int = 128,
    layers: int = 4,
    dropout: float = 0.2,
) -> LayerChain:
    """The embedding, each recurrent layer and the classifier, a layer of the chain each.

    PipeOptim's paper names the model alone, neither its width nor its depth (section V-A).

    `conf/model/residual_lstm.yaml` describes the options; `padding` is the id that fills up short texts.

    Raises:
        ConfigError: a width is below 1, or the share not from 0 to below 1.
    """
    for name, count in {"embedding": embedding, "hidden": hidden, "layers": layers}.items():
        check_whole(f"model.{name}", count, least=1)
    BELOW_ONE.check("model.dropout", dropout)
    words = TokenEmbedding(vocabulary_size, embedding, padding, dropout)
    recurrent = [ResidualLstmLayer(hidden if i else embedding, hidden, dropout) for i in range(layers)]
    model = ResidualLstm(words, recurrent, MeanClassifier(hidden, classes))
    return LayerChain(model, [words, *recurrent, model.classifier])
