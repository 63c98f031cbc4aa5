"""The AWD-LSTM: its layers, its dropout, and PipeDream's size."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pipetrain.zoo.models import awd_lstm
from pipetrain.zoo.models.awd_lstm import DroppedRecurrence

IDS = torch.randint(0, 20, (4, 7), generator=torch.Generator().manual_seed(0))


def test_chain_computes_what_the_module_does():
    chain = awd_lstm.build(20, embedding=8, hidden=12, layers=2)
    chain.module.eval()
    assert torch.equal(chain(IDS), chain.module(IDS))
    assert chain(IDS).shape == (4, 7, 20)
    assert len(chain) == 4


def test_pipedream_widths_give_weight_count_of_its_paper():
    with torch.device("meta"):
        module = awd_lstm.build(10_000, embedding=400, hidden=1370, layers=6).module
    gigabytes = sum(parameter.nbytes for parameter in module.parameters()) / 1e9
    assert round(gigabytes, 2) == 0.41


def test_tied_decoder_has_the_weight_of_the_embedding():
    chain = awd_lstm.build(20, embedding=8, hidden=12, layers=2, tied=True)
    assert chain.module.decoder.weight is chain.module.embedding.weight
    assert chain(IDS).shape == (4, 7, 20)


def test_dropout_drops_the_same_features_at_all_positions():
    torch.manual_seed(0)
    dropped = awd_lstm.LockedDropout(0.5)(torch.ones(2, 5, 30)) == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0 < dropped[:, 0].float().mean() < 1
    assert not torch.equal(dropped[0], dropped[1])


def test_dropped_word_is_dropped_wherever_it_stands():
    torch.manual_seed(0)
    embedded = awd_lstm.WordEmbedding(20, 6, word_dropout=0.5, dropout=0.0)(IDS)
    gone = {int(token) for token in IDS.flatten() if not embedded[token == IDS].any()}
    left = {int(token) for token in IDS.flatten() if embedded[token == IDS].all(1).all()}
    assert gone
    assert left
    assert gone | left == set(IDS.flatten().tolist())


def test_weight_drop_changes_the_training_alone():
    chain = awd_lstm.build(20, 8, 12, 2, dropout=0, input_dropout=0, hidden_dropout=0, weight_drop=0.5)
    assert not torch.equal(chain(IDS), chain(IDS))
    chain.module.eval()
    assert torch.equal(chain(IDS), chain(IDS))


ROWS, POSITIONS, WIDTH = 3, 4, 5


def arguments():
    torch.manual_seed(0)
    gates = torch.randn(ROWS, POSITIONS, 4 * WIDTH, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4 * WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = F.dropout(torch.ones_like(weight), 0.5).detach()
    hidden, cell = torch.randn(2, ROWS, WIDTH, dtype=torch.float64)
    return gates, weight, mask, hidden, cell


def test_recurrence_and_gradients_equal_torch_lstm_when_masked():
    _, _, _, hidden, cell = arguments()
    lstm = nn.LSTM(2, WIDTH, batch_first=True, dtype=torch.float64)
    x = torch.randn(ROWS, POSITIONS, 2, dtype=torch.float64)
    mask, weights = F.dropout(torch.ones_like(lstm.weight_hh_l0), 0.5), list(lstm.parameters())
    gates = F.linear(x, lstm.weight_ih_l0, lstm.bias_ih_l0) + lstm.bias_hh_l0
    ours, last = DroppedRecurrence.apply(gates, lstm.weight_hh_l0, mask, hidden, cell)
    masked = {"weight_hh_l0": lstm.weight_hh_l0 * mask}
    theirs, (_, wanted) = functional_call(lstm, masked, (x, (hidden[None], cell[None])))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(last, wanted[0])
    torch.testing.assert_close(*(torch.autograd.grad((each**2).sum(), weights) for each in (ours, theirs)))


def test_backward_reads_the_weights_that_it_is_given():
    gates, weight, mask, hidden, cell = arguments()
    others = torch.randn_like(weight)

    def gradient(given):
        """Of the gates' arguments at both positions, for a loss of the second hidden state."""
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: "weight" if tensor.data_ptr() == weight.data_ptr() else tensor,
            lambda saved: given if isinstance(saved, str) else saved,
        ):
            hiddens, _ = DroppedRecurrence.apply(gates, weight, mask, hidden, cell)
        return torch.autograd.grad(hiddens[:, 1].sum(), gates)[0].unbind(1)[:2]

    (first, second), (other_first, other_second) = gradient(weight), gradient(others)
    assert torch.equal(second, other_second)
    assert not torch.allclose(first, other_first)
