"""The AWD-LSTM language model (Merity et al. 2018, arXiv:1708.02182), cut between its LSTM layers."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from pipetrain.engine.errors import check_whole
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.stateful_layer import StatefulLayer
from pipetrain.engine.number_range import BELOW_ONE


class DroppedRecurrence(torch.autograd.Function):
    """Hidden states of an LSTM whose recurrent weights are multiplied by a mask, the same at each position.

    Under autograd alone the product of weights and mask would be saved, which belongs to the weights of the forward.
    Here the weights themselves are saved and multiplied in the backward, which thus reads whatever version of them it
    is given.
    """

    @staticmethod
    @override
    def forward(
        ctx: Any, gates: Tensor, weight: Tensor, mask: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The hidden states (n, positions, H), and the last cell state (n, H).

        `gates` is the input's part of the gates' arguments, biases included (n, positions, 4H), in torch's order. The
        recurrent `weight` (4H, H) is multiplied by `mask`. `hidden` and `cell` (n, H) begin, as constants.
        """
        recurrent = (weight * mask).t()
        hiddens, cells, activated = [hidden], [cell], []
        for at_position in gates.unbind(1):
            i, f, g, o = (at_position + hiddens[-1] @ recurrent).chunk(4, dim=1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            cells.append(f * cells[-1] + i * g)
            hiddens.append(o * cells[-1].tanh())
            activated.append(torch.stack([i, f, g, o]))
        states = torch.stack(hiddens)
        ctx.save_for_backward(weight, mask, states, torch.stack(cells), torch.stack(activated))
        ctx.mark_non_differentiable(cells[-1])
        return states[1:].transpose(0, 1).contiguous(), cells[-1]

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Gradients of the gates' arguments and the recurrent weights."""
        weight, mask, states, cells, activated = ctx.saved_tensors
        recurrent, of_states = weight * mask, gradients[0].unbind(1)
        of_hidden = of_cell = torch.zeros_like(states[0])
        of_gates = []
        for position in reversed(range(len(of_states))):
            i, f, g, o = activated[position]
            of_hidden = of_hidden + of_states[position]
            squashed = cells[position + 1].tanh()
            of_cell = of_cell + of_hidden * o * (1 - squashed * squashed)
            of_arguments = torch.cat(
                [
                    of_cell * g * i * (1 - i),
                    of_cell * cells[position] * f * (1 - f),
                    of_cell * i * (1 - g * g),
                    of_hidden * squashed * o * (1 - o),
                ],
                dim=1,
            )
            of_gates.append(of_arguments)
            of_hidden, of_cell = of_arguments @ recurrent, of_cell * f
        of_gates.reverse()
        of_weight = torch.cat(of_gates).t() @ states[:-1].flatten(0, 1)
        return torch.stack(of_gates, dim=1), of_weight * mask, None, None, None


_INITIAL = 0.1


class LockedDropout(nn.Module):
    """Dropout of the same features at all positions of a sample: inputs (n, positions, features)."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    @override
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.share:
            return x
        return x * F.dropout(x.new_ones(len(x), 1, x.shape[2]), self.share)


class WordEmbedding(nn.Embedding):
    """An embedding that drops whole words of the vocabulary, wherever they stand; ids (n, positions)."""

    def __init__(self, words: int, width: int, word_dropout: float, dropout: float) -> None:
        super().__init__(words, width)
        nn.init.uniform_(self.weight, -_INITIAL, _INITIAL)
        self.word_dropout = word_dropout
        self.locked = LockedDropout(dropout)

    @override
    def forward(self, input: Tensor) -> Tensor:
        x = super().forward(input)
        if self.training and self.word_dropout:
            kept = F.dropout(self.weight.new_ones(self.num_embeddings), self.word_dropout)
            x = x * kept[input].unsqueeze(-1)
        return self.locked(x)  # type: ignore[no-any-return]


class LstmLayer(StatefulLayer):
    """LSTM over (n, positions, features) that continues from the end of the previous minibatch.

    In training a share `dropout` of its outputs is dropped, the same at all positions, and `weight_drop` of its
    recurrent weights.
    """

    def __init__(self, inputs: int, width: int, dropout: float, weight_drop: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)
        self.locked = LockedDropout(dropout)
        self.weight_drop = weight_drop

    @override
    def forward(self, x: Tensor) -> Tensor:
        dropping = self.training and self.weight_drop > 0
        outputs, hidden, cell = self._dropping(x) if dropping else self._plain(x)
        self.carry(hidden, cell)
        return self.locked(outputs)  # type: ignore[no-any-return]

    def _plain(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        begins_with = tuple(state.unsqueeze(0) for state in self.carried) if self.carried else None
        outputs, (hidden, cell) = self.lstm(x, begins_with)
        return outputs, hidden[0], cell[0]

    def _dropping(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_input, of_hidden, input_bias, hidden_bias = self.lstm.all_weights[0]
        zeros = x.new_zeros(len(x), self.lstm.hidden_size)
        hidden, cell = self.carried or (zeros, zeros)
        mask = F.dropout(torch.ones_like(of_hidden), self.weight_drop)
        gates = F.linear(x, of_input, input_bias) + hidden_bias
        # nor is its backward under autocast
        with torch.autocast(x.device.type, enabled=False):
            outputs, cell = DroppedRecurrence.apply(gates.float(), of_hidden, mask, hidden, cell)
        return outputs, outputs[:, -1], cell


def build(  # noqa: PLR0913  (one for each setting of the model)
    vocabulary_size: int,
    embedding: int = 64,
    hidden: int = 256,
    layers: int = 3,
    dropout: float = 0.1,
    input_dropout: float = 0.1,
    hidden_dropout: float = 0.1,
    word_dropout: float = 0.0,
    weight_drop: float = 0.0,
    *,
    tied: bool = False,
) -> LayerChain:
    """The embedding, each LSTM and the decoder, a layer of the chain each; the LSTMs carry their state on.

    Token ids (n, positions) to the logits (n, positions, vocabulary) of the token after each.

    PipeDream trains six LSTM layers with 0.41 GB of weights and does not say how wide they are (section 5.2):
    `embedding=400 hidden=1370 layers=6` have the same number over the 10,000 words of Penn Treebank.

    `conf/model/awd_lm.yaml` describes the options. If `tied`, the last LSTM is as wide as the embedding.

    Raises:
        ConfigError: a width is below 1, or a share not from 0 to below 1.
    """
    for name, count in {"embedding": embedding, "hidden": hidden, "layers": layers}.items():
        check_whole(f"model.{name}", count, least=1)
    shares = {"dropout": dropout, "input_dropout": input_dropout, "hidden_dropout": hidden_dropout}
    for name, share in {**shares, "word_dropout": word_dropout, "weight_drop": weight_drop}.items():
        BELOW_ONE.check(f"model.{name}", share)
    widths = [embedding, *[hidden] * (layers - 1), embedding if tied else hidden]
    drops = [*[hidden_dropout] * (layers - 1), dropout]
    lstms = [LstmLayer(widths[i], widths[i + 1], drops[i], weight_drop) for i in range(layers)]
    words = WordEmbedding(vocabulary_size, embedding, word_dropout, input_dropout)
    decoder = nn.Linear(widths[-1], vocabulary_size)
    nn.init.zeros_(decoder.bias)
    if tied:
        decoder.weight = words.weight
    else:
        nn.init.uniform_(decoder.weight, -_INITIAL, _INITIAL)
    model = nn.Sequential(OrderedDict(embedding=words, lstms=nn.Sequential(*lstms), decoder=decoder))
    return LayerChain(model, [words, *lstms, decoder])
